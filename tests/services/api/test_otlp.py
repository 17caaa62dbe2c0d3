"""Where traces go: an endpoint as it is written, and OpenTelemetry's environment variables."""

from __future__ import annotations

import pytest

from services.api.otlp import ENDPOINT, HEADERS, headers_of, traces_url
from services.api.settings import Settings, SettingsError, load_settings, settings_file, to_environment

URL = "http://collector:4318/v1/traces"


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [("", ""), (URL, URL), ("http://collector:4318", URL), ("http://collector:4318/", URL),
     ("https://[::1]/otlp/v1/traces", "https://[::1]/otlp/v1/traces")],
)  # fmt: skip
def test_spans_are_posted_to_the_endpoint_or_to_the_usual_path_of_a_collector(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url


@pytest.mark.parametrize("endpoint", ["grpc://collector:4317", "http://collector:4317", "grpc://collector"])
def test_an_endpoint_for_grpc_is_refused_with_what_to_write(endpoint: str) -> None:
    with pytest.raises(ValueError, match=f"by HTTP: write {URL}"):
        traces_url(endpoint)


@pytest.mark.parametrize("endpoint", ["collector:4318", "collector", "http://", "http://collector:port/", "ftp://c/"])
def test_what_is_no_url_stops_the_start(endpoint: str) -> None:
    with pytest.raises(SettingsError, match=r"flag --otlp-traces-endpoint: .* is no URL"):
        load_settings({"otlp_traces_endpoint": endpoint})


def test_opentelemetrys_variables_count_below_everything_that_is_said_to_specmesh_alone() -> None:
    found = load_settings({}, {ENDPOINT: URL, "OTEL_SERVICE_NAME": "chat"})
    assert (found.otlp_traces_endpoint, found.otlp_service_name) == (URL, "chat")
    assert found.origin("otlp_traces_endpoint") == f"environment {ENDPOINT}"
    found = load_settings({}, {ENDPOINT: URL, "SPECMESH_OTLP_TRACES_ENDPOINT": "http://ours/x"})
    assert found.otlp_traces_endpoint == "http://ours/x"


def test_a_variable_that_is_meant_for_others_is_told_and_not_used() -> None:
    found = load_settings({}, {ENDPOINT: "http://collector:4317", "OTEL_SERVICE_NAME": "chat"})
    assert (found.otlp_traces_endpoint, found.otlp_service_name) == ("", "chat")
    (note,) = found.notes
    assert note.startswith(f"environment {ENDPOINT}: not used: ")


def test_a_child_sends_traces_where_its_parent_does_and_nowhere_else() -> None:
    inherited = {ENDPOINT: "http://of.the.machine/", "OTEL_SERVICE_NAME": "machine"}
    for settings in (Settings.for_tests(), Settings.for_tests(otlp_traces_endpoint=URL)):
        environment = inherited | to_environment(settings)
        child = load_settings({}, environment, settings_file(environment))
        assert child.otlp_traces_endpoint == settings.otlp_traces_endpoint
        assert child.otlp_service_name == "specmesh"


def test_headers_are_those_of_opentelemetrys_variables_the_one_for_traces_first() -> None:
    of_traces, of_all = HEADERS
    assert headers_of({}) == {}
    given = {of_all: "api-key=abc=%20d, x-tenant=7,"}
    assert headers_of(given) == {"api-key": "abc= d", "x-tenant": "7"}
    assert headers_of(given | {of_traces: "a=b"}) == {"a": "b"}


@pytest.mark.parametrize("entry", ["s3cret", "=s3cret", "a b=s3cret", "a=s3cret%0d%0ax: y"])
def test_what_is_no_header_is_told_without_its_value(entry: str) -> None:
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_HEADERS: entry 2 is no header") as told:
        headers_of({HEADERS[1]: f"fine=1,{entry}"})
    assert "s3cret" not in str(told.value)
