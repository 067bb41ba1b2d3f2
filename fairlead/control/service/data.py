"""Data sets and lineage: lists versions, shows what a result came from, and reruns a job."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection

from fairlead.control.datasets import pin_versions
from fairlead.control.identity.access import acting_for, require, scope
from fairlead.control.lineage import Repeat, ReportedOrigin, did_work, differences, what_repeats
from fairlead.control.records import DataSet, Generation, Job, Lineage, Role, Token
from fairlead.control.service.core import tenant_named
from fairlead.control.service.submission import SubmissionVerbs
from fairlead.control.store import bundles, datasets, events, generations, jobs, lineage
from fairlead.errors import NotFound, Refused
from fairlead.specs import JobSpec, parse_job
from fairlead.views.datasets import DataSetDetail, DataSetView, InputView, LineageView, RerunView, StretchView


class DataVerbs(SubmissionVerbs):
    """Operations on data sets, lineage and reruns."""

    async def datasets(self, who: Token, tenant: str | None) -> list[DataSetView]:
        """The newest version of each data set that this token may see."""
        wanted = scope(who) if tenant is None else acting_for(who, tenant)

        def work(connection: Connection) -> list[DataSet]:
            if wanted is not None:
                tenant_named(connection, wanted)
            return datasets.newest_versions(connection, wanted)

        return [self._view(each) for each in await self._read(work)]

    async def dataset(self, who: Token, name: str, version: str | None, tenant: str | None) -> DataSetDetail:
        """One version (default: the newest) with its manifest, its siblings, and the jobs that read them."""
        owner = acting_for(who, tenant)

        def work(connection: Connection) -> DataSetDetail:
            tenant_named(connection, owner)
            found = datasets.find(connection, owner, name, version)
            every = datasets.versions(connection, owner, name)
            return DataSetDetail(
                **self._view(found).model_dump(), manifest=dict(found.manifest),
                fitted=None if found.fitted is None else dict(found.fitted),
                versions=[self._view(each) for each in every], readers=lineage.readers(connection, owner, name),
            )  # fmt: skip

        return await self._read(work)

    async def drop_dataset(self, who: Token, name: str, version: str | None, tenant: str | None) -> list[DataSetView]:
        """Delete a version, or all of them. Jobs trained on it stay and keep their lineage."""
        require(who, Role.MEMBER, "drop data sets")
        owner, now_s = acting_for(who, tenant), self._core.clock()

        def work(connection: Connection) -> tuple[list[DataSet], set[str]]:
            tenant_named(connection, owner)
            labels = datasets.labels_by_version(connection, owner, [name])
            gone = datasets.drop(connection, owner, name, version)
            kept = {
                label for found in datasets.labels_by_version(connection, owner, [name]).values() for label in found
            }
            for each in gone:
                self._audit(connection, who, "data.drop", f"{name}@{each.version}", tenant=owner)
            events.append(connection, time_s=now_s, kind="data-dropped", tenant=owner, facts={"name": name},
                          text=f"{name}: {len(gone)} version{'s' if len(gone) > 1 else ''} dropped")  # fmt: skip
            unneeded = {label for each in gone for label in labels[each.name, each.version]} - kept
            return gone, unneeded

        gone, unneeded = await self._write(work)
        views = [self._view(each) for each in gone]
        if unneeded:
            self._core.controller.node_registry.discard(owner, [*unneeded, *(f"{label}/flagged" for label in unneeded)])
        return views

    def _view(self, data: DataSet) -> DataSetView:
        where = self._core.controller.node_registry.resident(data.tenant, _labels(data))
        return DataSetView(
            name=data.name, tenant=data.tenant, version=data.version, number=data.number, parent=data.parent,
            rows=data.rows, size_bytes=data.size_bytes, blocks=len(data.manifest.get("blocks", ())), recipe=data.recipe,
            job=data.job, created_s=data.created_s, created_by=data.created_by, resident=where,
        )  # fmt: skip

    # ------------------------------------------------------------ lineage

    async def lineage(self, who: Token, ref: str) -> LineageView:
        """Data, code, run and weights of a job, as far as known."""

        def work(connection: Connection) -> LineageView:
            job = jobs.find(connection, ref, scope(who))
            origin = lineage.get(connection, job.id)
            made = [each for each in datasets.newest_versions(connection, job.tenant) if each.job == job.id]
            first = None if origin is None or origin.again is None else str(origin.again["of"])
            return _lineage(
                job, jobs.stored_spec(connection, job.id), generations.of_job(connection, job.id), origin,
                _inputs(connection, job, _reported(origin)), [self._view(each) for each in made],
                None if first is None else (first, _reported(lineage.get(connection, first))),
            )  # fmt: skip

        return await self._read(work)

    async def rerun(self, who: Token, ref: str, key: str | None) -> RerunView:
        """Submit the job again: same code, parameters, seed and data versions, and if possible the same course."""
        require(who, Role.MEMBER, "submit jobs")

        def work(connection: Connection) -> tuple[Job, dict[str, Any], Repeat, ReportedOrigin | None]:
            job = jobs.find(connection, ref, scope(who))
            spec, said = jobs.stored_spec(connection, job.id), _reported(lineage.get(connection, job.id))
            code = spec.get("code")
            if code is not None and not bundles.exists_for(connection, job.tenant, code):
                raise NotFound(f"the code of {job.id} was removed", field="code", value=code,
                               fix="submit its folder again: fairlead submit")  # fmt: skip
            read = [(each.name, each.version) for each in said.data] if said is not None else []
            data = [f"{name}@{version}" for name, version in read or lineage.inputs(connection, job.id)]
            spec = {**spec, "data": pin_versions(connection, job.tenant, data)} if data else spec
            return job, spec, what_repeats(said, generations.of_job(connection, job.id)), said

        job, written, repeat, said = await self._read(work)
        if not job.training:
            raise Refused(f"{job.id} is a command: its course is not recorded and cannot be repeated",
                          fix="submit it again")  # fmt: skip
        sla = written.get("sla", {})
        if not str(sla.get("deadline", "P")).startswith("P"):  # a fixed time, which may be past, not a duration
            written["sla"] = {name: value for name, value in sla.items() if name != "deadline"}
        if repeat.workers is not None:
            written["workers"] = {"min": repeat.workers, "max": repeat.workers}
        again = {"of": job.id, "course": [] if said is None else msgspec.to_builtins(said.course), "plan": repeat.plan}
        spec: JobSpec = parse_job(written)
        view, _ = await self.submit(who, spec, key, again=again)
        return RerunView(job=view, rerun_of=job.id, repeats=repeat.gives, why=repeat.why)


def _labels(data: DataSet) -> list[str]:
    return data.manifest.get("labels") or [f"dataset/{data.name}"]


def _reported(origin: Lineage | None) -> ReportedOrigin | None:
    return None if origin is None or not origin.record else msgspec.convert(dict(origin.record), ReportedOrigin)


def _inputs(connection: Connection, job: Job, said: ReportedOrigin | None) -> list[InputView]:
    """What the job read: as its worker reported, or, while it runs, as it was given."""
    told = {(each.name, each.version): each for each in (said.data if said is not None else ())}
    found = []
    for name, version in sorted({*told, *lineage.inputs(connection, job.id)}):
        every = datasets.versions(connection, job.tenant, name)
        stored = next((each for each in every if each.version == version), None)
        one = told.get((name, version))
        found.append(InputView(
            name=name, version=version, recipe=stored.recipe if stored else one.recipe if one else "",
            rows=stored.rows if stored else one.rows if one else 0, blocks=one.blocks if one else [],
            loaded_by=stored.job if stored else "",
        ))  # fmt: skip
    return found


def _lineage(
    job: Job, spec: dict[str, Any], every: list[Generation], origin: Lineage | None, data: list[InputView],
    made: list[DataSetView], first: tuple[str, ReportedOrigin | None] | None,
) -> LineageView:  # fmt: skip
    said = _reported(origin)
    repeat = what_repeats(said, every)
    gives, why, same = repeat.gives, repeat.why, None
    if first is not None and said is not None and said.weights is not None and first[1] is not None:
        same = said.weights == first[1].weights
        changed = differences(first[1].environment, said.environment)
        if not same and changed:
            why = f"the environment is another: {changed}"
        elif not same and not said.followed:
            why = f"it did not take the same course as {first[0]}"
    return LineageView(
        job=job.id, tenant=job.tenant, state=str(job.phase), code=spec.get("code"), run=spec.get("run"),
        command=spec.get("command"), params=spec.get("params", {}), seed=None if said is None else said.seed, data=data,
        history=[_stretch(each) for each in every if did_work(each)],
        environment={} if said is None else dict(said.environment), weights=None if said is None else said.weights,
        made=made, rerun_of=None if first is None else first[0], same_weights=same, repeats=gives, why=why,
    )  # fmt: skip


def _stretch(generation: Generation) -> StretchView:
    plan = generation.plan or {}
    return StretchView(
        generation=generation.number, workers=len(generation.at_work), plan=plan.get("id"),
        nodes=[member.node for member in generation.at_work], first_step=generation.first_step,
        outcome=generation.outcome,
    )  # fmt: skip
