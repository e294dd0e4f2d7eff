"""A JSON schema in the words that llguidance takes as they are meant.

Its own formats of dates accept the year 0000 and any 29 February: patterns that are exact to the day stand
for them. uniqueItems, which it refuses, is left out where it is false and so says nothing.
"""

from typing import Any

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP = "(?:0[48]|[2468][048]|[13579][26])"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|(?:[0-9]{{2}}{_LEAP}|{_LEAP}00)-02-29)"
)
# No leap seconds: only some midnights have one.
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)

PATTERNS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}

# Keywords of a schema under which there are schemas: one, a list of them, or several by name.
_ONE = ("items", "additionalItems", "additionalProperties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


def for_llguidance(schema: Any) -> Any:
    """The schema and those within it, put so; what is no schema stays as it is."""
    if not isinstance(schema, dict):
        return schema
    put = dict(schema)
    for name, value in schema.items():
        if name in _LISTS and isinstance(value, list):
            put[name] = [for_llguidance(each) for each in value]
        elif name in _ONE:
            put[name] = for_llguidance(value)
        elif name in _NAMED and isinstance(value, dict):
            put[name] = {key: for_llguidance(each) for key, each in value.items()}
    pattern = PATTERNS.get(schema["format"]) if isinstance(schema.get("format"), str) else None
    if pattern is not None:
        del put["format"]
        others = put.get("allOf", [])
        if isinstance(others, list):
            put["allOf"] = [*others, {"pattern": pattern}]
    if put.get("uniqueItems") is False:
        del put["uniqueItems"]
    return put
