"""JSON of schemas: what is asked can be answered, and by no one text alone."""

from __future__ import annotations

import jsonschema
import pytest

from loadtest.workloads import schemas


def test_kinds_take_turns_and_every_schema_is_one() -> None:
    bodies = schemas.requests(2 * len(schemas.KINDS), 1)
    names = [body["response_format"]["json_schema"]["name"] for body in bodies]
    assert names == ["person", "parcel", "order", "state", "weather"] * 2
    for body in bodies:
        schema = body["response_format"]["json_schema"]["schema"]
        jsonschema.Draft202012Validator.check_schema(schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({}, schema)


def test_a_true_answer_is_one_of_its_schema() -> None:
    by_name = {body["response_format"]["json_schema"]["name"]: body for body in schemas.requests(5, 4)}
    parcel = by_name["parcel"]["response_format"]["json_schema"]["schema"]
    person = {"name": "Ana Costa", "address": {"town": "Porto", "country": "Portugal"}}
    jsonschema.validate({"sender": person, "receiver": person, "weight_in_grams": 700}, parcel)
    order = by_name["order"]["response_format"]["json_schema"]["schema"]
    article = {"name": "lamp", "count": 2, "price_in_cents": 900}
    jsonschema.validate({"customer": "Ana", "articles": [article] * 4}, order)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"customer": "Ana", "articles": [article] * 3}, order)
