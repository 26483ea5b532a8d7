"""The command template: connections, key names, scripts. Everything that talks to Redis goes through it.

`errors` what can go wrong · `settings` where the servers are · `link` one connection · `links` the connections to one server
· `topology` which server a key is on (one server; `sentinel`; `cluster` with `slotmap` and `slots`) · `scripts` and `lua/`
· `keys` every key name · `template` how a command is run · `commands` one method a command · `survey` what is unsafe
· `access` what users must be allowed · `denials` what an ACL refused, by name · `watchers` what Sentinels say
"""
