//! Reports of garbage collection, discovery and sweeps.
#![expect(clippy::too_many_arguments, reason = "fields of Python classes")]

use lcm_sdk::lifecycle::ParseEnumError;
use lcm_sdk::lifecycle::orphans::Conclusion;
use lcm_sdk::reconciler::Mode;
use lcm_sdk::{CallFailure, InstanceId, WorkerId};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use super::{ResultClass, UNSET, create, html};
use crate::annotation::{Annotated, Texts};
use crate::convert::to_timedelta;
use crate::python::{conclusion, failure_to_python, frozen_map, outcome};

result_class! {
    /// The conclusion of garbage collection about one record.
    Verdict in "lcm" {
        /// Id of the worker.
        worker_id: "str",
        /// Instance that the record names.
        ec2_instance_id: "str",
        /// The conclusion (`Conclusion`).
        conclusion: "Conclusion",
    }

    /// The conclusion as a sentence.
    #[getter]
    fn why(&self, py: Python<'_>) -> PyResult<&'static str> {
        let conclusion: Conclusion = self
            .text(py, "conclusion")?
            .parse()
            .map_err(|error: ParseEnumError| PyValueError::new_err(error.to_string()))?;
        Ok(conclusion.sentence())
    }
}

result_class! {
    /// Conclusions of garbage collection about a region.
    OrphanReport in "lcm" {
        /// Name of the region.
        region: "str",
        /// One verdict for each record that the scan did not show alive (`Verdict`).
        verdicts: "tuple[Verdict, ...]",
        /// Instances that neither the scan nor `verified` covers: describe them and judge again.
        unverified: "tuple[str, ...]",
    }

    /// Ids of the workers to mark terminated.
    #[getter]
    fn orphans<'py>(&self, py: Python<'py>) -> PyResult<Annotated<'py, Texts>> {
        orphans(self, py).map(Into::into)
    }

    /// Whether the region is frozen: nothing proves that the credentials belong to the account of its records.
    #[getter]
    fn is_frozen(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(count(self, py, Conclusion::Frozen)? > 0)
    }

    #[pyo3(signature = () -> "str")]
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        html(slf.as_any(), "orphan_report")
    }
}

result_class! {
    /// Findings and effects of discovery in one region. `verdicts` holds the conclusion about each record.
    RegionReport in "lcm" {
        /// Name of the region.
        region: "str",
        /// One verdict for each record that the scan did not show alive (`Verdict`).
        verdicts: "tuple[Verdict, ...]",
        /// Always empty: discovery describes every instance that the scan did not show.
        unverified: "tuple[str, ...]",
        /// Number of instances that the scan showed.
        seen: "int",
        /// Number of unknown instances that got a record; in a dry run, that would get one.
        imported: "int",
        /// Instances with the tags of another control plane: reported, never touched.
        foreign: "tuple[str, ...]",
        /// Workers with an instance that their record does not name: reconcile them, and they adopt it.
        handed_over: "tuple[str, ...]",
        /// Workers whose record is terminated while their instance lives. The record follows unless the policy forbids it.
        resurrected: "tuple[str, ...]",
        /// Workers whose record was marked terminated; empty in a dry run.
        terminated: "tuple[str, ...]",
        /// The first call that failed (`CallFailure`), or None. The scan or a write is then incomplete.
        error: "CallFailure | None" = None,
        /// Whether this was a dry run, in which nothing is written.
        dry_run: "bool" = UNSET,
    }

    /// Ids of the workers whose instance is gone.
    #[getter]
    fn orphans<'py>(&self, py: Python<'py>) -> PyResult<Annotated<'py, Texts>> {
        orphans(self, py).map(Into::into)
    }

    /// Whether the region is frozen: nothing proves that the credentials belong to the account of its records.
    #[getter]
    fn is_frozen(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(count(self, py, Conclusion::Frozen)? > 0)
    }

    /// Sentences about everything that limited the run.
    #[getter]
    fn notes<'py>(&self, py: Python<'py>) -> PyResult<Annotated<'py, Texts>> {
        PyTuple::new(py, notes(self, py)?).map(Into::into)
    }

    /// Findings and effects in one line.
    #[getter]
    fn summary(&self, py: Python<'_>) -> PyResult<String> {
        summary(self, py)
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        let mut text = vec![format!("{}: {}.", self.text(py, "region")?, summary(self, py)?)];
        text.extend(notes(self, py)?);
        Ok(text.join(" "))
    }

    #[pyo3(signature = () -> "str")]
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        html(slf.as_any(), "region_report")
    }
}

result_class! {
    /// Result of one run of discovery and garbage collection.
    DiscoveryReport in "lcm" {
        /// One report for each scanned region (`RegionReport`).
        regions: "tuple[RegionReport, ...]",
        /// The failed call (`CallFailure`) that kept the run from scanning any region, or None.
        error: "CallFailure | None" = None,
        /// Whether this was a dry run, in which nothing is written.
        dry_run: "bool" = UNSET,
    }

    /// Ids of the workers whose instance is gone, in all regions.
    #[getter]
    fn orphans<'py>(&self, py: Python<'py>) -> PyResult<Annotated<'py, Texts>> {
        flattened(&self.value(py, "regions")?, "orphans").map(Into::into)
    }

    /// Ids of the workers whose record was marked terminated, in all regions.
    #[getter]
    fn terminated<'py>(&self, py: Python<'py>) -> PyResult<Annotated<'py, Texts>> {
        flattened(&self.value(py, "regions")?, "terminated").map(Into::into)
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        let error = self.value(py, "error")?;
        if !error.is_none() {
            return Ok(format!("Nothing was done: {error}"));
        }
        let regions = self.value(py, "regions")?;
        let lines = regions.try_iter()?.map(|region| Ok(region?.str()?.to_string())).collect::<PyResult<Vec<_>>>()?;
        Ok(lines.join("\n"))
    }

    #[pyo3(signature = () -> "str")]
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        html(slf.as_any(), "discovery_report")
    }
}

result_class! {
    /// Result of the first reconcile of every worker, which a controller runs when it becomes leader.
    SweepReport in "lcm" {
        /// Number of workers listed.
        listed: "int",
        /// Number of reconciles by outcome (`Outcome`). A worker that vanished meanwhile has none.
        outcomes: "Mapping[Outcome, int]",
        /// Ids of the workers that were not reconciled in time.
        unfinished: "tuple[str, ...]",
        /// Duration of the sweep, a timedelta.
        took: "timedelta",
    }

    /// Whether every listed worker was reconciled in time.
    #[getter]
    fn is_complete(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.value(py, "unfinished")?.len()? == 0)
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        let unfinished: Vec<String> = self.value(py, "unfinished")?.extract()?;
        let listed: usize = self.value(py, "listed")?.extract()?;
        let seconds = self.value(py, "took")?.call_method0("total_seconds")?.call_method1("__format__", (".3g",))?;
        let mut text = format!("{} of {listed} reconciled in {seconds} s", listed - unfinished.len());
        let outcomes = self.value(py, "outcomes")?.call_method0("items")?;
        let outcomes = outcomes.try_iter()?.map(|entry| {
            let (outcome, reconciles): (Bound<'_, PyAny>, usize) = entry?.extract()?;
            Ok(format!("{reconciles} {outcome}"))
        });
        let outcomes = outcomes.collect::<PyResult<Vec<_>>>()?;
        if !outcomes.is_empty() {
            text += &format!(" ({})", outcomes.join(", "));
        }
        if !unfinished.is_empty() {
            text += &format!("; unfinished: {}", unfinished.join(", "));
        }
        Ok(text)
    }

    #[pyo3(signature = () -> "str")]
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        html(slf.as_any(), "sweep_report")
    }
}

fn verdicts<'py>(report: &impl ResultClass, py: Python<'py>) -> PyResult<Vec<Bound<'py, Verdict>>> {
    let verdicts = report.value(py, "verdicts")?;
    verdicts.try_iter()?.map(|verdict| Ok(verdict?.cast_into::<Verdict>()?)).collect()
}

fn count(report: &impl ResultClass, py: Python<'_>, conclusion: Conclusion) -> PyResult<usize> {
    let mut count = 0;
    for verdict in verdicts(report, py)? {
        count += usize::from(verdict.get().text(py, "conclusion")? == conclusion.as_str());
    }
    Ok(count)
}

fn orphans<'py>(report: &impl ResultClass, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
    let mut workers = Vec::new();
    for verdict in verdicts(report, py)? {
        if verdict.get().text(py, "conclusion")? == Conclusion::Orphan.as_str() {
            workers.push(verdict.get().value(py, "worker_id")?);
        }
    }
    PyTuple::new(py, workers)
}

fn notes(report: &RegionReport, py: Python<'_>) -> PyResult<Vec<String>> {
    let mut notes = Vec::new();
    let error = report.value(py, "error")?;
    if !error.is_none() {
        notes.push(format!("A call failed: {error}. Nothing is concluded from an incomplete scan."));
    }
    let frozen = count(report, py, Conclusion::Frozen)?;
    if frozen > 0 {
        notes.push(format!(
            "The region is frozen: EC2 shows none of its recorded instances, as with wrong credentials, but {frozen} records \
             name one. The region thaws when the account is proved, such as by its subnet."
        ));
    }
    let deferred = count(report, py, Conclusion::Deferred)?;
    if deferred > 0 {
        notes.push(format!(
            "This run has reached its limit of terminations; orphans left for the next run: {deferred}."
        ));
    }
    Ok(notes)
}

fn summary(report: &RegionReport, py: Python<'_>) -> PyResult<String> {
    let number = |field| -> PyResult<usize> { report.value(py, field)?.extract() };
    let length = |field| -> PyResult<usize> { report.value(py, field)?.len() };
    let dry_run = report.value(py, "dry_run")?.is_truthy()?;
    let mut parts = vec![format!("{} seen", number("seen")?)];
    let found = [
        (number("imported")?, if dry_run { "to import" } else { "imported" }),
        (length("foreign")?, "of another control plane"),
        (length("handed_over")?, "to reconcile"),
        (length("resurrected")?, "alive although terminated"),
    ];
    parts.extend(found.into_iter().filter(|(count, _)| *count > 0).map(|(count, label)| format!("{count} {label}")));
    parts.push(if dry_run {
        format!("orphans: {}", orphans(report, py)?.len())
    } else {
        format!("{} marked terminated", length("terminated")?)
    });
    Ok(parts.join(", "))
}

fn flattened<'py>(regions: &Bound<'py, PyAny>, field: &str) -> PyResult<Bound<'py, PyTuple>> {
    let mut workers = Vec::new();
    for region in regions.try_iter()? {
        for worker in region?.getattr(field)?.try_iter()? {
            workers.push(worker?);
        }
    }
    PyTuple::new(regions.py(), workers)
}

impl Verdict {
    /// Converts the SDK's verdict.
    pub(crate) fn from_sdk<'py>(
        py: Python<'py>,
        verdict: &lcm_sdk::lifecycle::orphans::Verdict,
    ) -> PyResult<Bound<'py, Self>> {
        let word = conclusion(py, verdict.conclusion.as_str())?;
        create(py, (verdict.worker_id.as_str(), verdict.ec2_instance_id.as_str(), word))
    }
}

impl RegionReport {
    fn from_sdk<'py>(
        py: Python<'py>,
        region: &lcm_sdk::workers::RegionReport,
        mode: Mode,
    ) -> PyResult<Bound<'py, Self>> {
        let verdicts = region.verdicts.iter().map(|verdict| Verdict::from_sdk(py, verdict));
        let names = |workers: &[WorkerId]| PyTuple::new(py, workers.iter().map(WorkerId::as_str));
        create(
            py,
            (
                region.region.as_str(),
                PyTuple::new(py, verdicts.collect::<PyResult<Vec<_>>>()?)?,
                PyTuple::empty(py),
                region.seen,
                region.imported,
                PyTuple::new(py, region.foreign.iter().map(InstanceId::as_str))?,
                names(&region.handed_over)?,
                names(&region.resurrected)?,
                names(&region.terminated)?,
                error_to_python(py, region.error.as_ref())?,
                mode == Mode::DryRun,
            ),
        )
    }
}

impl DiscoveryReport {
    /// Converts the SDK's report.
    pub(crate) fn from_sdk<'py>(
        py: Python<'py>,
        report: &lcm_sdk::workers::DiscoveryReport,
        mode: Mode,
    ) -> PyResult<Bound<'py, Self>> {
        let regions = report.regions.iter().map(|region| RegionReport::from_sdk(py, region, mode));
        let regions = PyTuple::new(py, regions.collect::<PyResult<Vec<_>>>()?)?;
        create(py, (regions, error_to_python(py, report.error.as_ref())?, mode == Mode::DryRun))
    }
}

impl SweepReport {
    /// Converts the SDK's report.
    pub(crate) fn from_sdk<'py>(
        py: Python<'py>,
        report: &lcm_sdk::controller::SweepReport,
    ) -> PyResult<Bound<'py, Self>> {
        let outcomes = PyDict::new(py);
        for (word, reconciles) in &report.outcomes {
            outcomes.set_item(outcome(py, word)?, reconciles)?;
        }
        let unfinished = PyTuple::new(py, &report.unfinished)?;
        create(py, (report.listed, frozen_map(py, &outcomes)?, unfinished, to_timedelta(py, report.took)?))
    }
}

fn error_to_python<'py>(py: Python<'py>, error: Option<&CallFailure>) -> PyResult<Option<Bound<'py, PyAny>>> {
    error.map(|failure| failure_to_python(py, failure)).transpose()
}
