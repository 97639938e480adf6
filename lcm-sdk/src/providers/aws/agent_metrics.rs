//! Under which dimensions the CloudWatch agents of a region report.
//!
//! An agent appends what its configuration says: image and type of the instance, for disks the path, the device and
//! the file system. CloudWatch finds a metric only under exactly its dimensions, so they are listed, and remembered.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_cloudwatch::Client;
use aws_sdk_cloudwatch::types::{Metric, RecentlyActive};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::call_policy::{Api, Guard};
use super::metric_names::{AGENT, INSTANCE_ID, Measure};
use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::ids::InstanceId;

/// How long a list is good for. An agent that is new is seen so much later.
const KEPT: Duration = Duration::from_secs(600);
/// A page holds 500 metrics.
const MOST_PAGES: usize = 100;
/// The file system that fills up.
const ROOT: &str = "/";

/// The full metric of a measure of an instance.
pub(super) type Listed = Arc<HashMap<(Measure, InstanceId), Metric>>;

type Slot = Arc<tokio::sync::Mutex<Option<(Instant, Listed)>>>;

/// What the agents of each region report under.
#[derive(Debug, Default)]
pub(super) struct Agents {
    regions: Mutex<HashMap<String, Slot>>,
}

impl Agents {
    /// The metrics of a region's agents. Who asks at the same time waits for one answer.
    ///
    /// # Errors
    /// A failure that can pass is told each time. One that cannot, such as a missing permission, is told once and then
    /// remembered as "none": asking again for every batch would cost calls and fill the log.
    pub(super) async fn listed(&self, region: &str, client: &Client, guard: &Guard) -> Result<Listed, CallFailure> {
        let slot = Arc::clone(self.regions.lock().entry(region.to_owned()).or_default());
        let mut remembered = slot.lock().await;
        if let Some((at, listed)) = &*remembered
            && at.elapsed() < KEPT
        {
            return Ok(Arc::clone(listed));
        }
        let mut listed = HashMap::new();
        for measure in Measure::OF_AGENT {
            if let Err(failure) = list(region, client, guard, measure, &mut listed).await {
                *remembered = failure.kind.is_permanent().then(|| (Instant::now(), Listed::default()));
                return Err(failure);
            }
        }
        let listed = Arc::new(listed);
        *remembered = Some((Instant::now(), Arc::clone(&listed)));
        Ok(listed)
    }
}

async fn list(
    region: &str,
    client: &Client,
    guard: &Guard,
    measure: Measure,
    listed: &mut HashMap<(Measure, InstanceId), Metric>,
) -> Result<(), CallFailure> {
    let mut token = None;
    for _ in 0..MOST_PAGES {
        let call = || {
            client
                .list_metrics()
                .namespace(AGENT)
                .metric_name(measure.metric_name())
                .recently_active(RecentlyActive::Pt3H)
                .set_next_token(token.clone())
                .send()
        };
        let page = guard.call(Api::ListMetrics, region, call).await?;
        for metric in page.metrics() {
            let Some(id) = dimension(metric, INSTANCE_ID).filter(|_| is_of_interest(metric)) else { continue };
            listed.entry((measure, id.into())).or_insert_with(|| metric.clone());
        }
        token = page.next_token.filter(|token| !token.is_empty());
        if token.is_none() {
            return Ok(());
        }
    }
    let message = format!("ListMetrics in {region} went on for {MOST_PAGES} pages without an end");
    Err(CallFailure::new(FailureKind::Unparsable, message))
}

/// Not under `InstanceId` alone, which was asked for before; and of several file systems the root.
fn is_of_interest(metric: &Metric) -> bool {
    metric.dimensions().len() > 1 && dimension(metric, "path").is_none_or(|path| path == ROOT)
}

fn dimension<'a>(metric: &'a Metric, name: &str) -> Option<&'a str> {
    metric.dimensions().iter().find(|dimension| dimension.name() == Some(name))?.value()
}
