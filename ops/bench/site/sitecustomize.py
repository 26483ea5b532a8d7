"""Python runs this at its start where this folder is on its path: that is how a stand-in reaches every worker of any engine."""

from ops.bench.standins import install

install()
