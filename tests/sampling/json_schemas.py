"""A hundred and more JSON schemas, some of every kind that people write: tests hold answers to them."""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "maxLength": 12}
NUMBER: Schema = {"type": "number", "minimum": -1000, "maximum": 1000}
WHOLE: Schema = {"type": "integer", "minimum": 0, "maximum": 999}


def object_of(*required: str, **properties: Any) -> Schema:
    """Nothing but these properties; those that are not named first may be left out."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required or properties),
        "additionalProperties": False,
    }


def array_of(items: Any, most: int = 4, **bounds: Any) -> Schema:
    return {"type": "array", "items": items, "maxItems": most, **bounds}


TEXTS: dict[str, Schema] = {
    "text": {"type": "string"},
    "text of any length up to a bound": {"type": "string", "maxLength": 5},
    "text of at least a length": {"type": "string", "minLength": 3, "maxLength": 20},
    "text of one length": {"type": "string", "minLength": 4, "maxLength": 4},
    "empty text": {"type": "string", "maxLength": 0},
    "digits": {"type": "string", "pattern": "^[0-9]{3,5}$"},
    "pattern without ends": {"type": "string", "pattern": "ab", "maxLength": 30},
    "pattern of alternatives": {"type": "string", "pattern": "^(cat|dog)s?$"},
    "pattern of classes": {"type": "string", "pattern": r"^\d{3}-\w{2,4}$"},
    "pattern of a postal code": {"type": "string", "pattern": "^[A-Z]{1,2}[0-9][A-Z0-9]? ?[0-9][A-Z]{2}$"},
    "pattern with a quote and a backslash": {"type": "string", "pattern": r'^["\\]{1,3}$'},
    "pattern and length": {"type": "string", "pattern": "^[ab]*$", "minLength": 2, "maxLength": 6},
    "two patterns": {"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "z$"}], "maxLength": 16},
    "unicode pattern": {"type": "string", "pattern": "^[가-힣]{1,3}$"},
    "pattern of a colour": {"type": "string", "pattern": "^#[0-9a-f]{6}$"},
    "pattern of a version": {"type": "string", "pattern": r"^(0|[1-9]\d{0,2})\.(0|[1-9]\d{0,2})$"},
}
FORMATS: dict[str, Schema] = {
    format_: {"type": "string", "format": format_}
    for format_ in (
        "date",
        "time",
        "date-time",
        "uuid",
        "ipv4",
        "ipv6",
        "email",
        "hostname",
        "duration",
        "uri",
    )
} | {
    "date or null": {"type": ["string", "null"], "format": "date"},
    "date with a pattern": {"type": "string", "format": "date", "pattern": "^20"},
    "dates": array_of({"type": "string", "format": "date"}, minItems=2),
    "format within a definition": {
        "$defs": {"day": {"type": "string", "format": "date"}},
        **object_of(since={"$ref": "#/$defs/day"}, until={"$ref": "#/$defs/day"}),
    },
    "format under a name that is no keyword": object_of(
        date={"type": "string", "format": "uuid"}, format=TEXT
    ),
}
NUMBERS: dict[str, Schema] = {
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "integer in a range": {"type": "integer", "minimum": -5, "maximum": 17},
    "integer above": {"type": "integer", "exclusiveMinimum": 100},
    "integer below": {"type": "integer", "exclusiveMaximum": 0},
    "one integer": {"type": "integer", "minimum": 42, "maximum": 42},
    "wide range": {"type": "integer", "minimum": 1900, "maximum": 2099},
    "probability": {"type": "number", "minimum": 0, "maximum": 1},
    "open probability": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "negative number": {"type": "number", "maximum": -0.5},
    "latitude": {"type": "number", "minimum": -90, "maximum": 90},
    "multiple": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
    "even": {"type": "integer", "multipleOf": 2},
    "number or integer": {"type": ["integer", "null"], "minimum": 3, "maximum": 9},
}
CONSTANTS: dict[str, Schema] = {
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "constant text": {"const": "yes"},
    "constant number": {"const": 3.5},
    "constant object": {"const": {"a": [1, None, {"b": "c"}]}},
    "constant array": {"const": [1, "two", False]},
    "enum of texts": {"enum": ["red", "green", "blue"]},
    "enum of all kinds": {"enum": [None, True, 7, "x", [], {"k": 1}]},
    "enum with quotes": {"enum": ['say "hi"', "back\\slash", "new\nline", "tab\t"]},
    "unicode enum": {"enum": ["é", "한국", "🧑‍🚀", "Ω"]},
    "typed enum": {"type": "string", "enum": ["a", "b", 3]},
    "enum with a pattern": {"enum": ["one", "two", "three"], "pattern": "^t"},
    "several types": {"type": ["string", "integer", "null"], "maxLength": 6, "maximum": 50, "minimum": 0},
}
ARRAYS: dict[str, Schema] = {
    "array of texts": array_of(TEXT),
    "array of bounds": array_of(WHOLE, most=3, minItems=2),
    "array of one length": array_of({"type": "boolean"}, most=5, minItems=5),
    "empty array": {"type": "array", "maxItems": 0},
    "array of anything": {
        "type": "array",
        "maxItems": 2,
        "minItems": 1,
        "items": {"type": ["null", "boolean"]},
    },
    "pair": {"type": "array", "prefixItems": [TEXT, WHOLE], "items": False, "minItems": 2},
    "pair and more": {
        "type": "array",
        "prefixItems": [WHOLE],
        "items": {"type": "boolean"},
        "minItems": 2,
        "maxItems": 4,
    },
    "matrix": array_of(array_of(WHOLE, most=2, minItems=2), most=2, minItems=2),
    "array of objects": array_of(object_of(id=WHOLE, name=TEXT), most=2, minItems=1),
    "array of enums": array_of({"enum": ["n", "e", "s", "w"]}, most=6, minItems=1),
    "array of alternatives": array_of({"anyOf": [WHOLE, {"type": "null"}]}, most=5, minItems=2),
}
OBJECTS: dict[str, Schema] = {
    "any object": {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "boolean"}},
    "empty object": {"type": "object", "properties": {}, "additionalProperties": False},
    "person": object_of(name=TEXT, age=WHOLE),
    "optional properties": object_of("a", a=WHOLE, b=TEXT, c={"type": "boolean"}),
    "all optional": {**object_of(x=WHOLE, y=WHOLE), "required": []},
    "order of properties": object_of(zeta=WHOLE, alpha=WHOLE, mid=WHOLE),
    "nullable property": object_of(nickname={"type": ["string", "null"], "maxLength": 5}),
    "nested": object_of(a=object_of(b=object_of(c=object_of(d=WHOLE)))),
    "map of numbers": {
        "type": "object",
        "additionalProperties": WHOLE,
        "maxProperties": 1,
    },
    "map with a known key": {
        "type": "object",
        "properties": {"id": WHOLE},
        "required": ["id"],
        "additionalProperties": False,
    },
    "keys by pattern": {
        "type": "object",
        "patternProperties": {"^k[0-9]$": WHOLE},
        "additionalProperties": False,
        "maxProperties": 1,
    },
    "required without a schema": {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "required": ["a", "b"],
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 2,
    },
    "at least one property": {
        "type": "object",
        "properties": {"a": WHOLE, "b": WHOLE},
        "additionalProperties": False,
        "minProperties": 1,
    },
    "names with odd characters": object_of(
        **{"a b": WHOLE, 'q"q': WHOLE, "한": WHOLE, "": WHOLE, "$x": WHOLE}
    ),
    "annotations": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.org/s",
        "title": "T",
        "description": "d",
        "default": {},
        "examples": [{}],
        **object_of(a={**WHOLE, "title": "A", "deprecated": True, "default": 3}),
    },
    "address": object_of(
        street=TEXT,
        city=TEXT,
        zip={"type": "string", "pattern": "^[0-9]{5}$"},
        country={"enum": ["KR", "DE", "US"]},
    ),
    "many properties": object_of(**{f"p{number}": {"type": "boolean"} for number in range(20)}),
    "unique items that say nothing": object_of(tags={**array_of({"enum": ["a", "b"]}), "uniqueItems": False}),
}
UNIONS: dict[str, Schema] = {
    "any of types": {"anyOf": [TEXT, WHOLE, {"type": "null"}]},
    "any of objects": {"anyOf": [object_of(a=WHOLE), object_of(b=TEXT)]},
    "one of constants": {"oneOf": [{"const": "a"}, {"const": "b"}]},
    "one of types": {"oneOf": [{"type": "boolean"}, WHOLE, {"type": "array", "maxItems": 0}]},
    "tagged union": {
        "oneOf": [
            object_of(kind={"const": "circle"}, radius=NUMBER),
            object_of(kind={"const": "square"}, side=NUMBER),
            object_of(kind={"const": "point"}),
        ]
    },
    "all of objects": {
        "type": "object",
        "allOf": [
            {"properties": {"a": WHOLE}, "required": ["a"]},
            {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ],
        "maxProperties": 2,
    },
    "all of ranges": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 12}]},
    "siblings of any of": {
        "type": "object",
        "properties": {"a": WHOLE, "b": WHOLE},
        "additionalProperties": False,
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "optional in pydantic's way": object_of(x={"anyOf": [WHOLE, {"type": "null"}], "default": None}),
    "union in an array": array_of({"anyOf": [object_of(n=WHOLE), {"type": "boolean"}]}, most=3, minItems=1),
    "nested unions": {
        "anyOf": [{"anyOf": [{"const": 1}, {"const": 2}]}, {"oneOf": [{"const": "x"}, {"const": "y"}]}]
    },
    "union of arrays": {"anyOf": [array_of(WHOLE, most=2), array_of({"type": "null"}, most=2)]},
}
REFERENCES: dict[str, Schema] = {
    "definition": {"$ref": "#/$defs/w", "$defs": {"w": WHOLE}},
    "older definitions": {"$ref": "#/definitions/w", "definitions": {"w": {"type": "boolean"}}},
    "definition used twice": {
        "$defs": {"point": object_of(x=WHOLE, y=WHOLE)},
        **object_of(start={"$ref": "#/$defs/point"}, end={"$ref": "#/$defs/point"}),
    },
    "definitions in a row": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": {"enum": [1, 2]}},
        "$ref": "#/$defs/a",
    },
    "linked list": {
        "$defs": {
            "node": object_of(value=WHOLE, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]})
        },
        "$ref": "#/$defs/node",
    },
    "tree": {
        "$defs": {"tree": object_of(v={"type": "boolean"}, kids=array_of({"$ref": "#/$defs/tree"}, most=1))},
        "$ref": "#/$defs/tree",
    },
    "reference to the root": object_of(n=WHOLE, more={"anyOf": [{"type": "null"}, {"$ref": "#"}]}),
    "two that call each other": {
        "$defs": {
            "even": {"anyOf": [{"const": 0}, object_of(odd={"$ref": "#/$defs/odd"})]},
            "odd": {"anyOf": [{"const": 1}, object_of(even={"$ref": "#/$defs/even"})]},
        },
        "$ref": "#/$defs/even",
    },
    "expression": {
        "$defs": {
            "expr": {
                "anyOf": [
                    WHOLE,
                    object_of(op={"enum": ["+", "*"]}, left=WHOLE, right={"$ref": "#/$defs/expr"}),
                ]
            }
        },
        "$ref": "#/$defs/expr",
    },
    "reference into properties": object_of(a=WHOLE, b={"$ref": "#/properties/a"}),
    "reference with siblings": {
        "$defs": {"w": {"type": "integer", "minimum": 0}},
        **object_of(a={"$ref": "#/$defs/w", "maximum": 3}),
    },
}
USES: dict[str, Schema] = {
    "calendar event": object_of(
        name=TEXT, day={"type": "string", "format": "date"}, participants=array_of(TEXT, most=2)
    ),
    "sentiment": object_of(label={"enum": ["positive", "negative", "neutral"]}, score=NUMBER),
    "steps of reasoning": object_of(
        steps=array_of(object_of(explanation=TEXT, output=TEXT), most=2), final_answer=TEXT
    ),
    "call of a tool": object_of(
        name={"const": "get_weather"},
        arguments=object_of("city", city=TEXT, unit={"enum": ["celsius", "fahrenheit"]}),
    ),
    "choice of tools": {
        "anyOf": [
            object_of(name={"const": "add"}, arguments=object_of(a=WHOLE, b=WHOLE)),
            object_of(
                name={"const": "now"},
                arguments=object_of("tz", tz={"type": "string", "pattern": "^[A-Z]{3}$"}),
            ),
        ]
    },
    "invoice": object_of(
        number={"type": "string", "pattern": "^INV-[0-9]{4}$"},
        lines=array_of(object_of(item=TEXT, quantity=WHOLE, price=NUMBER), most=2, minItems=1),
        paid={"type": "boolean"},
    ),
    "user": object_of(
        "id",
        "email",
        id={"type": "string", "format": "uuid"},
        email={"type": "string", "format": "email", "maxLength": 30},
        role={"enum": ["admin", "user"]},
    ),
    "map route": object_of(points=array_of(object_of(lat=NUMBER, lon=NUMBER), most=2, minItems=1)),
    "configuration": object_of(
        "version",
        version={"const": 2},
        debug={"type": "boolean"},
        hosts=array_of({"type": "string", "format": "ipv4"}, most=2),
    ),
    "graded answer": object_of(
        grade={"type": "integer", "minimum": 1, "maximum": 5}, reason={**TEXT, "minLength": 1}
    ),
}

SCHEMAS: dict[str, Schema] = {
    **TEXTS,
    **FORMATS,
    **NUMBERS,
    **CONSTANTS,
    **ARRAYS,
    **OBJECTS,
    **UNIONS,
    **REFERENCES,
    **USES,
}

REFUSED: dict[str, tuple[Schema, str]] = {  # what is not understood, and a word of the reason
    "unique items": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "not": ({"not": {"type": "null"}}, "not"),
    "if": ({"if": {"type": "null"}, "then": {}}, "if"),
    "contains": ({"type": "array", "contains": {}}, "contains"),
    "property names": ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"),
    "dependent required": ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    "unevaluated": ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    "unknown format": ({"type": "string", "format": "iri"}, "iri"),
    "unknown type": ({"type": "float"}, "float"),
    "look-ahead": ({"type": "string", "pattern": "(?=a)"}, "look-around"),
    "broken pattern": ({"type": "string", "pattern": "["}, "unclosed"),
    "remote reference": ({"$ref": "https://example.org/x"}, "example.org"),
    "missing reference": ({"$ref": "#/$defs/x"}, "x"),
    "overlapping one of": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "anyOf"),
    "empty range": ({"type": "integer", "minimum": 3, "maximum": 1}, "greater"),
    "empty enum": ({"enum": []}, "Unsatisfiable"),
    "properties that are none": ({"properties": 3}, "properties"),
}
