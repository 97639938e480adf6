//! Native half of the Python package `lcm`. It converts arguments and results and calls `lcm-sdk`; it decides nothing.

mod annotation;
mod bridge;
mod clients;
mod cml;
mod command;
mod compute;
mod conformance;
mod control_plane;
mod controller;
mod convert;
mod coordination;
mod decide_many;
mod decisions;
mod events;
mod fake_cloud;
mod input;
mod logs;
mod metrics;
mod observation;
mod operations;
mod orphans;
mod policy;
mod port_results;
mod python;
mod reconcile;
mod replay;
mod resources;
mod results;
mod runtime;
mod simulate;
mod table;
mod timeout;
mod worker;

/// The module `lcm._lcm`.
#[pyo3::pymodule]
mod _lcm {
    use lcm_sdk::telemetry::Telemetry;

    /// Content type of the metrics of a controller.
    #[pymodule_export]
    const METRICS_CONTENT_TYPE: &str = Telemetry::CONTENT_TYPE;

    #[pymodule_export]
    use crate::clients::Clients;
    #[pymodule_export]
    use crate::command::{fake_cloud_command, lcm_command, worker_controller_command};
    #[pymodule_export]
    use crate::conformance::check_port;
    #[pymodule_export]
    use crate::controller::Controller;
    #[pymodule_export]
    use crate::decide_many::{Decisions, decide_many};
    #[pymodule_export]
    use crate::decisions::{
        backoff_seconds, check_drain, decide, decide_cancel_drain, diagrams, eligible, find_orphans, initiate_drain,
        transitions,
    };
    #[pymodule_export]
    use crate::fake_cloud::FakeCloud;
    #[pymodule_export]
    use crate::observation::Observation;
    #[pymodule_export]
    use crate::operations::{operate, start_operate};
    #[pymodule_export]
    use crate::orphans::{collect_orphans, start_collect_orphans};
    #[pymodule_export]
    use crate::policy::Policy;
    #[pymodule_export]
    use crate::reconcile::{explain, reconcile, reconcile_now, start_explain, start_reconcile, start_reconcile_now};
    #[pymodule_export]
    use crate::replay::{replay, why};
    #[pymodule_export]
    use crate::resources::ResourceController;
    #[pymodule_export]
    use crate::results::{
        Comparison, Decision, Difference, DiscoveryReport, Effect, Explanation, Figures, OrphanReport, Patch, Reason,
        ReconcileResult, RecordedStep, RegionReport, Replay, Step, SweepReport, Transition, Verdict,
    };
    #[pymodule_export]
    use crate::runtime::Task;
    #[pymodule_export]
    use crate::simulate::{History, compare, read_scenario, simulate};
    #[pymodule_export]
    use crate::table::Table;
    #[pymodule_export]
    use crate::worker::Worker;
}
