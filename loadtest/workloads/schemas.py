"""Answers held to JSON schemas by `response_format`: flat, nested, with lists, with enumerations, with long names.

The prompt has the facts and the schema; every text has a longest length, so that an answer of any model ends.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from loadtest.workloads.records import FAMILIES, NAMES, TOWNS, TRADES

Schema = dict[str, Any]
MAX_TOKENS = 400
SYSTEM = "You put facts down as JSON. You answer with JSON alone, of the schema that the user gives."
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
STATES = ("waiting for payment", "packed and ready to be sent", "on its way to the customer", "delivered")
GOODS = ("lamp", "kettle", "blanket", "mirror", "bucket", "ladder", "basket", "hammer", "candle", "teapot")


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(f"schemas {seed}")
    return [_request(*KINDS[number % len(KINDS)](draw)) for number in range(count)]


def _request(name: str, facts: str, schema: Schema) -> dict[str, Any]:
    asked = f"{facts}\n\nThe schema:\n{json.dumps(schema)}"
    return {
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}],
        "response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}},
        "max_tokens": MAX_TOKENS, "temperature": 0,
    }  # fmt: skip


# Parts of schemas -----------------------------------------------------------------------------------------


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _list(items: Schema, count: int) -> Schema:
    return {"type": "array", "items": items, "minItems": count, "maxItems": count}


def _integer(most: int) -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": most}


TEXT: Schema = {"type": "string", "maxLength": 24}


# Kinds ----------------------------------------------------------------------------------------------------


def _flat(draw: random.Random) -> tuple[str, str, Schema]:
    person, town, trade = _person(draw), draw.choice(TOWNS), draw.choice(TRADES)
    age, number = draw.randrange(18, 90), draw.randrange(10_000, 99_999)
    facts = f"{person}, {age} years old, is a {trade} in {town} (member {number})."
    return "person", facts, _object(name=TEXT, age=_integer(130), trade=TEXT, town=TEXT, member_number=_integer(99_999))


def _nested(draw: random.Random) -> tuple[str, str, Schema]:
    sender, receiver, (first, second) = _person(draw), _person(draw), draw.sample(TOWNS, 2)
    grams = draw.randrange(200, 9000)
    facts = f"A parcel of {grams} grams goes from {sender} in {first} to {receiver} in {second}."
    person = _object(name=TEXT, address=_object(town=TEXT, country=TEXT))
    return "parcel", facts, _object(sender=person, receiver=person, weight_in_grams=_integer(9999))


def _lists(draw: random.Random) -> tuple[str, str, Schema]:
    lines = [(name, draw.randrange(1, 20), draw.randrange(100, 9000)) for name in draw.sample(GOODS, 4)]
    said = ", ".join(f"{count} of {name} at {price} cents" for name, count, price in lines)
    order = _object(
        customer=TEXT, articles=_list(_object(name=TEXT, count=_integer(99), price_in_cents=_integer(9999)), len(lines))
    )
    return "order", f"{_person(draw)} orders {said}.", order


def _enumerations(draw: random.Random) -> tuple[str, str, Schema]:
    state, day, trade, town = draw.choice(STATES), draw.choice(DAYS), draw.choice(TRADES), draw.choice(TOWNS)
    facts = f"The order of the {trade} from {town} is {state}. It arrives on {day} and is not a gift."
    order = _object(
        state={"enum": list(STATES)}, day={"enum": list(DAYS)}, trade={"enum": list(TRADES)},
        town={"enum": list(TOWNS)}, is_a_gift={"type": "boolean"},
    )  # fmt: skip
    return "state", facts, order


def _long_names(draw: random.Random) -> tuple[str, str, Schema]:
    town, rain, wind = draw.choice(TOWNS), draw.randrange(0, 900), draw.randrange(3, 90)
    low, high = draw.randrange(0, 12), draw.randrange(13, 38)
    facts = (
        f"In {town} it was between {low} and {high} degrees last month, with {rain} millimetres of rain and wind of up "
        f"to {wind} metres a second."
    )
    return "weather", facts, _object(
        name_of_the_town_in_which_it_was_measured=TEXT,
        lowest_temperature_of_the_month_in_degrees=_integer(60),
        highest_temperature_of_the_month_in_degrees=_integer(60),
        amount_of_rain_in_the_month_in_millimetres=_integer(999),
        highest_speed_of_the_wind_in_metres_a_second=_integer(99),
    )  # fmt: skip


def _person(draw: random.Random) -> str:
    return f"{draw.choice(NAMES)} {draw.choice(FAMILIES)}"


KINDS: tuple[Callable[[random.Random], tuple[str, str, Schema]], ...] = (
    _flat, _nested, _lists, _enumerations, _long_names,
)  # fmt: skip
