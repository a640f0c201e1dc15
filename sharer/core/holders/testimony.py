"""What the evidence says about each slice: who claims it, who has ended and still lives, and what nobody can tell.

Each source knows a part: `List` has names without UIDs, the checkpoint UIDs without names and init containers too, the
API both, cgroups and process lists only who is alive. Here they are put together for one moment; nothing is decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sharer.core.device_id import uuid_part
from sharer.core.holders.evidence import CheckpointReading, Evidence, Holder, SliceKey
from sharer.core.values import replace

Holders = tuple[Holder, ...]

ABSENCES = 2  # readings of `List` without the owner, after which the kubelet has freed the slice


class Testimony:
    """The evidence of one moment, looked up in the directions that judging slices needs."""

    def __init__(
        self,
        evidence: Evidence,
        missing_from: Mapping[SliceKey, int],
        names: Mapping[str, tuple[str, str]],
        known: Iterable[Holder],
    ) -> None:
        """`missing_from` and `names` as in the ledger; `known`: its holders, who may be named by no source any more."""
        self._evidence = evidence
        self._missing_from = missing_from
        self._pods = evidence.pods_by_cgroup()
        self._uids = {name: uid for uid, name in names.items()}  # the newest pod of each name
        self._names: dict[str, tuple[str | None, str | None]] = dict(names)
        for holder in known:
            if holder.uid is not None and holder.pod is not None:
                self._names.setdefault(holder.uid, (holder.namespace, holder.pod))
        self._checkpoint = self._given(evidence.checkpoint)
        then = evidence.checkpoint_then
        if then is None or not then.is_current:
            then = evidence.checkpoint
        self._was_current = then is not None and then.is_current
        self._checkpoint_then = self._checkpoint if then is evidence.checkpoint else self._given(then)
        self._pods_on: dict[str, set[str]] = {}  # device UUID -> pod UIDs with a process on it
        self._unknown_on: set[str] = set()  # device UUIDs with a process of which the pod cannot be told
        for process in evidence.processes.processes if evidence.processes is not None else ():
            if process.uid is not None:
                self._pods_on.setdefault(process.gpu_uuid, set()).add(process.uid)
            elif not process.attributed:
                self._unknown_on.add(process.gpu_uuid)
        self._active: dict[Holder, bool] = {}
        self._last: tuple[Holder, Holders, Holder] | None = None  # of `full`: both arguments and the answer
        self.claims = self._claims()
        self.remnants = {
            key: alive
            for key, holders in self._checkpoint.items()
            if (alive := [holder for holder in holders if not self._is_active(holder) and self.life(holder, key)])
        }

    def _given(self, checkpoint: CheckpointReading | None) -> dict[SliceKey, Holders]:
        """Whom the checkpoint says each slice was given to, with the names of the pods as far as they are known."""
        given: dict[SliceKey, Holders] = {}
        for one in checkpoint.entries if checkpoint is not None else ():
            namespace, pod_name = self._names.get(one.uid, (None, None))
            alone = (Holder(uid=one.uid, namespace=namespace, pod=pod_name, container=one.container),)
            for device_id in one.ids:
                key = (one.resource, device_id)
                given[key] = (*given[key], *alone) if key in given else alone
        return given

    def _claims(self) -> dict[SliceKey, Holder]:
        """The owner of each slice, as the kubelet sees it: its list, else its checkpoint."""
        listed = self._evidence.listed.holders if self._evidence.listed is not None else {}
        claims: dict[SliceKey, Holder] = {}
        for key, holders in self._checkpoint.items():
            if key not in listed and (active := [holder for holder in holders if self._is_active(holder)]):
                claims[key] = min(active, key=lambda holder: (holder.uid or "", holder.container))
        for key, holder in listed.items():
            full = self.full(holder, key)
            if not self.has_ended(full):
                claims[key] = full
        return claims

    def full(self, holder: Holder, key: SliceKey) -> Holder:
        """The holder with what only other sources know: a UID from the checkpoint, a name from the API.

        Whom `List` names is looked for in the checkpoint of that time: by now the slice may have been given on.
        """
        others = self._checkpoint_then.get(key) or self._checkpoint.get(key, ())
        if self._last is None or self._last[:2] != (holder, others):
            self._last = (holder, others, self._work_out(holder, others))
        return self._last[2]  # the same for all slices of a container, which come one after the other

    def _work_out(self, holder: Holder, others: Holders) -> Holder:
        name = self._names.get(holder.uid) if holder.uid is not None else None
        if holder.pod is None and name is not None:
            return replace(holder, namespace=name[0], pod=name[1])
        if holder.uid is not None and name in (None, (holder.namespace, holder.pod)):
            return holder
        # No UID yet, or one that turns out to be another pod's.
        holder = replace(holder, uid=None)
        same = [other for other in others if other.container == holder.container]
        named = [other for other in same if (other.namespace, other.pod) == (holder.namespace, holder.pod)]
        candidates = named or [other for other in same if other.pod is None]
        young = candidates if self._was_current else []  # its cgroup comes a bit later
        uids = {other.uid for other in candidates if self._is_active(other)} or {other.uid for other in young}
        if not uids and (uid := self._uids.get((holder.namespace or "", holder.pod or ""))) is not None:
            uids = {uid}
        return replace(holder, uid=uids.pop()) if len(uids) == 1 else holder

    def _is_active(self, holder: Holder) -> bool:
        """Whether the kubelet has the pod of a checkpoint entry: it lives, and its list names it if it names any.

        It lives if its cgroup is populated or the API calls it active. A force-deleted pod is alive and not listed.
        """
        if holder not in self._active:
            self._active[holder] = self._is_known_and_lives(holder)
        return self._active[holder]

    def _is_known_and_lives(self, holder: Holder) -> bool:
        assert holder.uid is not None
        listed = self._evidence.listed
        if holder.namespace is not None and holder.pod is not None and listed is not None:
            name = (holder.namespace, holder.pod)
            if name not in listed.pods or self._uids.get(name, holder.uid) != holder.uid:
                return False
        pod = self._pods.get(holder.uid)
        return (pod is not None and not pod.phase.is_terminal) or self._populated(holder.uid) is True

    def _populated(self, uid: str) -> bool | None:
        cgroups = self._evidence.cgroups
        return None if cgroups is None else cgroups.populated.get(uid, False)

    def is_freed(self, key: SliceKey) -> bool:
        """Whether enough readings of `List` in a row were without this slice. One that was never listed is."""
        listed = self._evidence.listed
        return listed is not None and listed.serial - self._missing_from.get(key, 0) + 1 >= ABSENCES

    def has_ended(self, holder: Holder) -> bool:
        """Whether the API says that the pod is over and its cgroup is empty: enough by itself to end ownership."""
        if holder.uid is None:
            return False
        pod = self._pods.get(holder.uid)
        return pod is not None and pod.phase.is_terminal and self._populated(holder.uid) is False

    def life(self, holder: Holder, key: SliceKey) -> bool | None:
        """Whether something of a holder lives on this slice; None: nobody can tell."""
        uuid = uuid_part(key[1])
        processes = self._evidence.processes
        asked = processes is not None and uuid in processes.asked
        if holder.uid is None:  # without a UID, only a GPU without any pod's process proves something
            return False if asked and uuid not in self._pods_on and uuid not in self._unknown_on else None
        populated = self._populated(holder.uid)
        if populated or holder.uid in self._pods_on.get(uuid, ()):
            return True
        if populated is False:
            return False
        return False if asked and uuid not in self._unknown_on else None
