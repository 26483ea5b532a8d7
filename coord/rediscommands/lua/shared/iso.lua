-- A time (ms since 1970) as `2026-01-31T23:59:59.999Z`; the civil calendar counted in 400-year eras from 1 March 0000.
local function iso(ms)
  local seconds = math.floor(ms / 1000)
  local days = math.floor(seconds / 86400) + 719468
  local era = math.floor(days / 146097)
  local day_of_era = days - era * 146097
  local year_of_era = math.floor((day_of_era - math.floor(day_of_era / 1460) + math.floor(day_of_era / 36524)
    - math.floor(day_of_era / 146096)) / 365)
  local day_of_year = day_of_era - (365 * year_of_era + math.floor(year_of_era / 4) - math.floor(year_of_era / 100))
  local month_from_march = math.floor((5 * day_of_year + 2) / 153)
  local day = day_of_year - math.floor((153 * month_from_march + 2) / 5) + 1
  local month = month_from_march < 10 and month_from_march + 3 or month_from_march - 9
  local year = year_of_era + era * 400 + (month <= 2 and 1 or 0)
  local of_day = seconds % 86400
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%03dZ', year, month, day, math.floor(of_day / 3600),
    math.floor(of_day / 60) % 60, of_day % 60, ms % 1000)
end
