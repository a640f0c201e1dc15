"""Create, replace, patch, apply and delete, with the subresources `status` and `eviction`."""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from sharer.simulation.apiserver.authorization import Access
from sharer.simulation.apiserver.definitions import Definitions
from sharer.simulation.apiserver.fields import apply, managed_fields, merge_patch
from sharer.simulation.apiserver.identity import check_version, identified, main_part, part
from sharer.simulation.apiserver.kinds import BUDGET, NODE, POD, Kind, Target
from sharer.simulation.apiserver.rules import MOST_STORED_BYTES, check
from sharer.simulation.apiserver.statuses import Answer, Failure, Object, success
from sharer.simulation.apiserver.store import Key, Owners, Store, Stored

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
_SERVERS = ("uid", "creationTimestamp", "resourceVersion", "generation", "managedFields", "deletionTimestamp",
            "deletionGracePeriodSeconds")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A request that changes something."""

    target: Target
    query: Mapping[str, str]
    content_type: str
    body: bytes

    @property
    def dry_run(self) -> bool:
        """Whether nothing is to be stored."""
        return self.query.get("dryRun") == "All"

    def read(self) -> Object:
        """The body. Raises Failure (400)."""
        try:
            body = msgspec.json.decode(self.body or b"{}")
        except msgspec.DecodeError as error:
            raise Failure(400, f"the object provided is unrecognized: {error}") from error
        if not isinstance(body, dict):
            raise Failure(400, "the object provided is unrecognized: not an object")
        return body


class Writes:
    """All writes, one at a time."""

    def __init__(self, store: Store, access: Access, definitions: Definitions, *, seed: int = 0) -> None:
        self._store = store
        self._access = access
        self._definitions = definitions
        self._rng = random.Random(seed)

    def put(self, kind: Kind, obj: Object) -> Stored:
        """Store an object as it is, status and all, as controllers and kubelets would have made it in many steps."""
        with self._store.lock:
            metadata = obj["metadata"]
            if kind.namespaced:
                metadata = {"namespace": "default", **metadata}
            before = self._store.get(kind, Key(metadata.get("namespace", ""), metadata["name"]))
            obj = {**obj, "metadata": metadata}
            if (
                before is not None
                and metadata.get("uid", before.obj["metadata"]["uid"]) != before.obj["metadata"]["uid"]
            ):
                self._store.remove(kind, before.key)
            elif before is not None:
                kept = {key: before.obj["metadata"][key] for key in ("uid", "creationTimestamp")}
                return self._store.write(kind, {**obj, "metadata": {**kept, **metadata}}, before.owners)
            return self._store.write(kind, self._born(obj), {})

    def create(self, write: Write) -> Answer:
        """POST. Raises Failure."""
        target = write.target
        if write.content_type.partition(";")[0] not in ("", "application/json"):
            raise Failure(415, f"the simulated API server reads application/json, not {write.content_type}")
        body = write.read()
        if target.subresource == "eviction":
            return self._evict(write, body)
        if target.name is not None:
            raise Failure(405, "the server does not allow this method on the requested resource")
        with self._store.lock:
            if not target.kind.custom:  # built-in kinds follow from the path
                body = {"apiVersion": target.kind.api_version, "kind": target.kind.kind, **body}
            obj = identified(target, body)
            name = obj["metadata"].get("name") or self._generated(obj)
            obj = {**(obj if target.kind is NODE else main_part(target.kind, obj))}
            obj["metadata"] = {**obj["metadata"], "name": name}
            if target.kind is POD:
                obj["status"] = {"phase": "Pending"}
            if self._store.get(target.kind, Key(target.namespace or "", name)) is not None:
                raise Failure(409, f'{target.kind.qualified} "{name}" already exists', reason="AlreadyExists")
            return self._finish(write, None, self._born(obj), {})

    def update(self, write: Write) -> Answer:
        """PUT: replace an object that is there, or its status. Raises Failure."""
        target = write.target
        with self._store.lock:
            before = self._stored(target)
            if before is None:
                raise Failure.not_found(target.kind.qualified, target.name or "")
            wanted = identified(target, write.read())
            check_version(target, before, wanted)
            given = {} if target.subresource == "status" else wanted["metadata"]
            kept = {key: value for key, value in before.obj["metadata"].items() if key in _SERVERS}
            if target.subresource == "status":
                result = {**before.obj, "status": wanted.get("status")}
            else:
                live = {} if "status" not in target.kind.subresources else {"status": before.obj.get("status")}
                whole = {**main_part(target.kind, wanted), "metadata": {**given, **kept}}
                result = whole | {key: value for key, value in live.items() if value is not None}
            return self._finish(write, before, result, before.owners)

    def patch(self, write: Write) -> Answer:
        """PATCH. Raises Failure."""
        match write.content_type.partition(";")[0]:
            case content_type if content_type == APPLY:
                return self._apply(write)
            case content_type if content_type == MERGE:
                return self._merge(write)
            case _:
                raise Failure(
                    415,
                    f"the body of the request was in an unknown format - accepted media types: {MERGE}, {APPLY}",
                )

    def delete(self, write: Write) -> Answer:
        """DELETE of one object. A pod that is bound to a node is only marked: its kubelet ends it. Raises Failure."""
        target, options = write.target, write.read()
        assert target.name is not None
        with self._store.lock:
            key = Key(target.namespace or "", target.name)
            stored = self._store.demand(target.kind, key)
            _check_preconditions(target.kind, stored, options)
            grace_s = _grace_s(target.kind, stored, options, write.query)
            if not write.dry_run:
                self._end(target.kind, stored, grace_s)
            return Answer(code=200, body=stored.raw)

    # -- apply and patch

    def _apply(self, write: Write) -> Answer:
        target, body = write.target, write.read()
        manager = write.query.get("fieldManager", "")
        if not manager:
            raise Failure.invalid(
                "PatchOptions.meta.k8s.io", "", "fieldManager", "Required value: is required for apply patch"
            )
        if body.get("metadata", {}).get("managedFields"):
            raise Failure(400, "metadata.managedFields must be nil")
        wanted = identified(target, body)
        definition = self._definitions.of(target.kind)
        if definition is not None:
            definition.refuse_for_apply(wanted)
        mine = part(target, wanted)
        with self._store.lock:
            before = self._stored(target)
            if before is None:
                if target.subresource is not None:
                    raise Failure.not_found(target.kind.qualified, target.name or "")
                self._access.authorize("create", target, target.name)
            check_version(target, before, wanted)
            live = before.obj if before is not None else self._born(mine)
            owners = before.owners if before is not None else {}
            force = write.query.get("force") == "true"
            result, owners = apply(live, owners, mine, (manager, target.subresource or ""), force=force)
            return self._finish(write, before, result, owners)

    def _merge(self, write: Write) -> Answer:
        target, patch = write.target, write.read()
        with self._store.lock:
            before = self._stored(target)
            if before is None:
                raise Failure.not_found(target.kind.qualified, target.name or "")
            check_version(target, before, patch)
            result = merge_patch(before.obj, part(target, patch))
            assert isinstance(result, dict)
            return self._finish(write, before, identified(target, result), before.owners)

    def _stored(self, target: Target) -> Stored | None:
        if target.name is None:
            raise Failure(405, "the server does not allow this method on the requested resource")
        return self._store.get(target.kind, Key(target.namespace or "", target.name))

    def _finish(self, write: Write, before: Stored | None, obj: Object, owners: Owners) -> Answer:
        """Check and store. What changes nothing gets no new version."""
        kind = write.target.kind
        check(kind, obj)
        code = 200 if before is not None else 201
        warnings: Mapping[str, str] = {}
        if (definition := self._definitions.of(kind)) is not None:
            obj, warnings = definition.prune(obj, write.query.get("fieldValidation", "Warn"))
            definition.check(obj)
        if before is not None and obj == before.obj and owners == before.owners:
            return Answer(code=code, body=before.raw, headers=warnings)
        metadata = obj["metadata"]
        if before is not None and obj.get("spec") != before.obj.get("spec"):
            metadata = {**metadata, "generation": metadata.get("generation", 1) + 1}
        if owners and (before is None or owners != before.owners):
            metadata = {**metadata, "managedFields": managed_fields(owners, kind.api_version, _now())}
        obj = {**obj, "metadata": metadata}
        raw = msgspec.json.encode(obj)
        if len(raw) > MOST_STORED_BYTES:
            raise Failure(500, "etcdserver: request is too large", reason="")
        if write.dry_run:
            return Answer(code=code, body=raw, headers=warnings)
        return Answer(code=code, body=self._store.write(kind, obj, owners).raw, headers=warnings)

    def _born(self, obj: Object) -> Object:
        metadata = {
            **obj["metadata"],
            "uid": obj["metadata"].get("uid") or str(uuid.UUID(int=self._rng.getrandbits(128), version=4)),
            "creationTimestamp": obj["metadata"].get("creationTimestamp") or _now(),
        }
        if "spec" in obj:
            metadata.setdefault("generation", 1)
        return {**obj, "metadata": metadata}

    def _generated(self, obj: Object) -> str:
        prefix = obj["metadata"].get("generateName")
        if not prefix:
            raise Failure.invalid(
                str(obj.get("kind")), "", "metadata.name", "Required value: name or generateName is required"
            )
        return str(prefix) + "".join(self._rng.choices("bcdfghjklmnpqrstvwxz2456789", k=5))

    # -- the end of pods

    def _evict(self, write: Write, body: Object) -> Answer:
        """api-server-facts §5."""
        target = write.target
        name = body.get("metadata", {}).get("name")
        if not name or name != target.name:
            raise Failure(400, f"name in URL does not match name in Eviction object: {target.name} vs {name}")
        with self._store.lock:
            pod = self._store.demand(POD, Key(target.namespace or "", name))
            options = body.get("deleteOptions") or {}
            _check_preconditions(POD, pod, options)
            if "deletionTimestamp" in pod.obj["metadata"]:
                return success()
            self._check_budgets(pod)
            if not write.dry_run:
                status = pod.obj.get("status") or {}
                condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
                conditions = [*(status.get("conditions") or []), condition]
                pod = replace(pod, obj={**pod.obj, "status": {**status, "conditions": conditions}})
                self._end(POD, pod, _grace_s(POD, pod, options, {}))
        return success()

    def _check_budgets(self, pod: Stored) -> None:
        labels = pod.obj["metadata"].get("labels") or {}

        def protects(budget: Object) -> bool:
            wanted = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
            return wanted.items() <= labels.items() and budget.get("status", {}).get("disruptionsAllowed", 0) < 1

        for budget in self._store.select(BUDGET, pod.key.namespace, protects):
            raise Failure(
                429,
                "Cannot evict pod as it would violate the pod's disruption budget.",
                details={
                    "causes": [
                        {
                            "reason": "DisruptionBudget",
                            "message": f"The disruption budget {budget.key.name} does not allow another disruption",
                        }
                    ]
                },
            )

    def _end(self, kind: Kind, stored: Stored, grace_s: int) -> None:
        metadata = stored.obj["metadata"]
        if grace_s == 0 and not metadata.get("finalizers"):
            self._store.remove(kind, stored.key)
        elif "deletionTimestamp" not in metadata:
            marks = {"deletionTimestamp": _now(grace_s), "deletionGracePeriodSeconds": grace_s}
            self._store.write(kind, {**stored.obj, "metadata": {**metadata, **marks}}, stored.owners)


def _check_preconditions(kind: Kind, stored: Stored, options: Object) -> None:
    wanted = (options.get("preconditions") or {}).get("uid")
    uid = stored.obj["metadata"]["uid"]
    if wanted is not None and wanted != uid:
        raise Failure(
            409,
            f'Operation cannot be fulfilled on {kind.qualified} "{stored.key.name}": the UID in the precondition '
            f"({wanted}) does not match the UID in record ({uid})",
        )


def _grace_s(kind: Kind, stored: Stored, options: Object, query: Mapping[str, str]) -> int:
    asked = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    if kind is not POD or not (stored.obj.get("spec") or {}).get("nodeName"):
        return 0
    if asked is not None:
        return int(asked)
    return int((stored.obj.get("spec") or {}).get("terminationGracePeriodSeconds", 30))


def _now(plus_s: int = 0) -> str:
    time = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=plus_s)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
