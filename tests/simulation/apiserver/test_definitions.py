"""Custom kinds of the simulated API server: schema, pruning, tables, discovery, PUT (api-server-facts §3)."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Iterator
from typing import Any

import pytest

from sharer.simulation.apiserver import CONFIG_MAP, GPU_NODE, KINDS, NODE, POD, ApiServer, node_object, pod_object
from sharer.simulation.apiserver.tables import age
from tests.simulation.apiserver.http import PODS, Http, Reply

GPU_NODES = "/apis/sharer.dev/v1alpha1/gpunodes"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "status": {
            "type": "object",
            "properties": {
                "agent": {"type": "string", "maxLength": 8},
                "count": {"type": "integer", "minimum": 0, "nullable": True},
                "mode": {"type": "string", "enum": ["a", "b"]},
                "at": {"type": "string", "format": "date-time"},
                "gpus": {
                    "type": "array",
                    "maxItems": 2,
                    "items": {
                        "type": "object",
                        "required": ["uuid"],
                        "properties": {"uuid": {"type": "string"}, "free": {"type": "integer"}},
                    },
                },
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        }
    },
}
COLUMNS: list[dict[str, Any]] = [
    {"name": "Count", "type": "integer", "jsonPath": ".status.count"},
    {"name": "First", "type": "string", "jsonPath": ".status.gpus[*].uuid", "priority": 1},
    {"name": "Since", "type": "date", "jsonPath": ".status.at"},
]


def crd(schema: dict[str, Any] = SCHEMA, columns: list[dict[str, Any]] = COLUMNS) -> dict[str, Any]:
    version = {"name": "v1alpha1", "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gpunodes.sharer.dev"},
        "spec": {
            "group": "sharer.dev",
            "scope": "Cluster",
            "names": {"kind": "GpuNode", "plural": "gpunodes", "shortNames": ["gn"], "categories": ["sharer"]},
            "versions": [
                {**version, "schema": {"openAPIV3Schema": schema}, "additionalPrinterColumns": columns},
            ],
        },
    }


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().start() as server:
        assert server.define(crd()) == GPU_NODE
        yield server


def obj(name: str = "n1", **fields: object) -> dict[str, object]:
    return {"apiVersion": "sharer.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, **fields}


def apply_status(http: Http, **status: object) -> Reply:
    http.apply(f"{GPU_NODES}/n1", obj())
    return http.apply(f"{GPU_NODES}/n1/status", obj(status=status))


# ---- the definition itself


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"properties": {"a": {}}}, ".a.type: Required value"),
        ({"properties": {"a": {"type": "array"}}}, ".a.items: Required value"),
        ({"properties": {"a": {"type": "string", "items": {"type": "string"}}}}, "only of an array"),
        ({"properties": {}, "additionalProperties": {"type": "string"}}, "together with properties"),
        ({"properties": {"a": {"type": "object", "required": ["b"]}}}, "b is not a property"),
        ({"properties": {"a": {"type": "string", "$ref": "#/x"}}}, "$ref: Forbidden"),
        ({"properties": {"a": {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"}}},
         "list-map-keys: Required value"),
    ],
)  # fmt: skip
def test_a_schema_that_is_not_structural_is_refused(server: ApiServer, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as raised:
        server.define(crd({"type": "object", **change}))
    assert said in str(raised.value)


def test_a_column_needs_a_type_and_a_path(server: ApiServer) -> None:
    columns = [{"name": "A", "type": "text", "jsonPath": ".a"}, {"name": "B", "type": "string", "jsonPath": "b[0]"}]
    with pytest.raises(ValueError, match="column A: text is no type; column B: b\\[0\\] is no JSONPath"):
        server.define(crd(columns=columns))


def test_a_changed_definition_ends_watches_cleanly_and_a_deleted_one_takes_its_objects(
    server: ApiServer, http: Http
) -> None:
    server.put(GPU_NODE, obj())
    with http.watch(GPU_NODES) as watch:
        assert watch.next()[0] == "ADDED"
        server.define(crd())
        assert watch.rest() == b""
    with http.watch(GPU_NODES) as watch:
        watch.next()
        server.undefine(GPU_NODE)
        assert watch.next()[0] == "DELETED"
        assert watch.rest() == b""
    assert http.get(GPU_NODES).code == 404
    assert http.get(GPU_NODES).body == b"404 page not found\n"


# ---- what a write may say


@pytest.mark.parametrize(
    "status", [{"bogus": 1}, {"gpus": [{"uuid": "a", "new": 1}]}, {"agent": 5}, {"count": "5"}, {"count": True}]
)
def test_an_apply_of_an_unknown_field_or_a_wrong_type_is_an_error_without_a_reason(
    http: Http, status: dict[str, object]
) -> None:
    refused = apply_status(http, **status)
    assert refused.code == 500
    assert refused.json["message"].startswith("failed to create typed patch object (/n1; sharer.dev/v1alpha1")
    assert not refused.json["reason"]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"gpus": [{"uuid": "a"}] * 3}, "status.gpus: Too many: 3: must have at most 2 items"),
        ({"mode": "c"}, 'status.mode: Unsupported value: "c"'),
        ({"count": -1}, "status.count: Invalid value: -1: should be greater than or equal to 0"),
        ({"agent": None}, 'status.agent: Invalid value: "null": must be of type string'),
        ({"agent": "123456789"}, "status.agent: Too long: may not be more than 8"),
        ({"at": "2026-01-01T00:00:00"}, "status.at: Invalid value"),
        ({"gpus": [{"free": 1}]}, "status.gpus[0].uuid: Required value"),
    ],
)
def test_an_apply_that_breaks_a_rule_of_the_schema_is_422(http: Http, status: dict[str, object], said: str) -> None:
    refused = apply_status(http, **status)
    assert refused.code == 422
    assert said in refused.json["message"]


def test_null_where_it_is_allowed_and_unknown_fields_where_they_are_preserved_are_stored(http: Http) -> None:
    status = {"count": None, "open": {"any": {"thing": 1}}, "labels": {"a": "b"}, "at": "2026-01-01T00:00:00.5Z"}
    assert apply_status(http, **status).code == 200
    assert http.get(f"{GPU_NODES}/n1").json["status"] == status


def test_other_writes_lose_unknown_fields_and_are_warned(http: Http) -> None:
    http.post(GPU_NODES, obj())
    reply = http.merge(
        f"{GPU_NODES}/n1/status", {"status": {"agent": "2", "bogus": 1, "gpus": [{"uuid": "a", "x": 1}]}}
    )
    assert reply.json["status"] == {"agent": "2", "gpus": [{"uuid": "a"}]}
    assert reply.headers["Warning"] == '299 - "unknown field "status.bogus", unknown field "status.gpus[0].x""'


def test_a_client_may_ask_to_be_refused_instead(http: Http) -> None:
    refused = http.post(GPU_NODES, obj(spec={"a": 1}), fieldValidation="Strict")
    assert refused.code == 400
    assert 'strict decoding error: unknown field "spec"' in refused.json["message"]
    assert http.post(GPU_NODES, obj(spec={"a": 1}), fieldValidation="Ignore").code == 201


# ---- PUT


def test_an_object_is_replaced_whole_but_for_its_status_and_identity(http: Http) -> None:
    made = http.post(GPU_NODES, obj(metadata={"name": "n1", "labels": {"a": "b"}})).json
    http.merge(f"{GPU_NODES}/n1/status", {"status": {"agent": "1"}})
    new = http.put(f"{GPU_NODES}/n1", obj(status={"agent": "9"}))
    assert (new.code, new.json["status"]) == (200, {"agent": "1"})
    assert "labels" not in new.json["metadata"]
    assert new.json["metadata"]["uid"] == made["metadata"]["uid"]


def test_a_status_is_replaced_alone(http: Http) -> None:
    http.post(GPU_NODES, obj(metadata={"name": "n1", "labels": {"a": "b"}}))
    new = http.put(f"{GPU_NODES}/n1/status", obj(metadata={"name": "n1", "labels": {}}, status={"agent": "1"})).json
    assert (new["status"], new["metadata"]["labels"]) == ({"agent": "1"}, {"a": "b"})


def test_what_changed_since_it_was_read_is_not_replaced(http: Http) -> None:
    old = http.post(GPU_NODES, obj()).json
    http.merge(f"{GPU_NODES}/n1", {"metadata": {"labels": {"a": "b"}}})
    assert http.put(f"{GPU_NODES}/n1", old).code == 409
    assert http.put(f"{GPU_NODES}/none", obj("none")).code == 404
    assert http.put(GPU_NODES, obj()).code == 405


# ---- tables


def table(http: Http, path: str, **query: object) -> Any:  # JSON
    return http.get_as(TABLE, path, **query).json


def test_a_list_is_printed_by_the_columns_of_its_definition(server: ApiServer, http: Http) -> None:
    server.put(GPU_NODE, obj("a", status={"count": 3, "gpus": [{"uuid": "g1"}, {"uuid": "g2"}]}))
    server.put(GPU_NODE, obj("b"))
    shown = table(http, GPU_NODES)
    assert (shown["kind"], shown["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [(one["name"], one["type"], one["priority"]) for one in shown["columnDefinitions"]] == [
        ("Name", "string", 0), ("Count", "integer", 0), ("First", "string", 1), ("Since", "date", 0),
    ]  # fmt: skip
    assert [row["cells"] for row in shown["rows"]] == [["a", 3, "g1", "<unknown>"], ["b", None, None, "<unknown>"]]


def test_a_table_carries_no_more_of_its_objects_than_is_asked_for(server: ApiServer, http: Http) -> None:
    server.put(GPU_NODE, obj("a", status={"count": 3}))
    (row,) = table(http, GPU_NODES)["rows"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert "status" not in row["object"]
    assert "object" not in table(http, GPU_NODES, includeObject="None")["rows"][0]
    assert table(http, GPU_NODES, includeObject="Object")["rows"][0]["object"]["status"] == {"count": 3}


def test_tables_come_in_pages_and_of_one_object_too(server: ApiServer, http: Http) -> None:
    for name in ("a", "b", "c"):
        server.put(GPU_NODE, obj(name))
    first = table(http, GPU_NODES, limit=2)
    assert [row["cells"][0] for row in first["rows"]] == ["a", "b"]
    rest = table(http, GPU_NODES, limit=2, **{"continue": first["metadata"]["continue"]})
    assert [row["cells"][0] for row in rest["rows"]] == ["c"]
    assert [row["cells"][0] for row in table(http, f"{GPU_NODES}/b")["rows"]] == ["b"]


def test_pods_nodes_and_everything_else_have_columns_of_their_own(server: ApiServer, http: Http) -> None:
    server.put(POD, pod_object("train", node="n1", phase="Running", deleting=True))
    server.put(POD, pod_object("wait"))
    cordoned = node_object("n1", labels={"node-role.kubernetes.io/gpu": ""})
    server.put(NODE, {**cordoned, "spec": {"unschedulable": True}})
    server.put(CONFIG_MAP, {"metadata": {"name": "c"}})
    assert [row["cells"][:4] for row in table(http, PODS)["rows"]] == [
        ["train", "0/1", "Terminating", "0"], ["wait", "0/1", "Pending", "0"],
    ]  # fmt: skip
    assert table(http, "/api/v1/nodes")["rows"][0]["cells"][:3] == ["n1", "Ready,SchedulingDisabled", "gpu"]
    assert table(http, "/api/v1/configmaps")["rows"][0]["cells"][0] == "c"


def test_who_does_not_ask_for_a_table_gets_the_list(server: ApiServer, http: Http) -> None:
    server.put(GPU_NODE, obj("a"))
    for accept in ("", "application/json", f"application/json,{TABLE}"):
        assert http.get_as(accept, GPU_NODES).json["kind"] == "GpuNodeList"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(5, "5s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (3000, "50m"), (4 * 3600, "4h"), (20 * 3600, "20h"),
     (3 * 86400 + 3600, "3d1h"), (30 * 86400, "30d"), (800 * 86400, "2y")],
)  # fmt: skip
def test_an_age_is_told_in_kubectls_words(seconds: int, said: str) -> None:
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert age((now - datetime.timedelta(seconds=seconds)).isoformat(), now) == said


# ---- discovery


def test_one_document_names_everything_to_those_who_ask_for_it(http: Http) -> None:
    core, rest = (http.get_as(AGGREGATED, path) for path in ("/api", "/apis"))
    assert "as=APIGroupDiscoveryList" in core.headers["Content-Type"]
    assert [one["metadata"] for one in core.json["items"]] == [{}]
    groups = {one["metadata"]["name"]: one for one in rest.json["items"]}
    assert set(groups) == {kind.group for kind in KINDS if kind.group}
    (resource,) = groups["sharer.dev"]["versions"][0]["resources"]
    assert (resource["resource"], resource["shortNames"], resource["categories"]) == ("gpunodes", ["gn"], ["sharer"])
    assert [one["subresource"] for one in resource["subresources"]] == ["status"]


def test_everybody_else_finds_it_step_by_step(http: Http) -> None:
    assert http.get("/api").json["versions"] == ["v1"]
    main, status = http.get("/apis/sharer.dev/v1alpha1").json["resources"]
    assert (main["shortNames"], main["categories"], status["name"]) == (["gn"], ["sharer"], "gpunodes/status")


def test_openapi_tells_the_schema_and_that_a_dry_run_works(http: Http) -> None:
    paths = http.get("/openapi/v3").json["paths"]
    url = paths["apis/sharer.dev/v1alpha1"]["serverRelativeURL"].partition("?")[0]
    document = http.get(url).json
    assert document["components"]["schemas"]["dev.sharer.v1alpha1.GpuNode"]["properties"] == SCHEMA["properties"]
    patch = document["paths"][f"{GPU_NODES}/{{name}}"]["patch"]
    assert {one["name"] for one in patch["parameters"]} >= {"dryRun", "fieldValidation"}


def test_a_kind_that_nobody_defined_takes_everything_and_one_that_was_taken_away_is_not_named() -> None:
    with ApiServer().start() as server:
        http = Http(server)
        assert http.post(GPU_NODES, obj(anything=copy.deepcopy(SCHEMA))).code == 201
        server.undefine(GPU_NODE)
        assert http.get("/apis/sharer.dev/v1alpha1").code == 404
