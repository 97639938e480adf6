//! Metrics in the text format of Prometheus, with the names of real etcd.

use std::fmt::Write as _;

use super::services::Context;
use super::{CLUSTER_VERSION, VERSION};

/// The metrics that describe a store. Those of disks, Raft and the Go runtime have no meaning here and are left out.
pub(super) fn render(context: &Context) -> String {
    let (gauges, counters, leases) =
        context.store.with(|store, _| (store.gauges(), store.counters(), store.granted_leases().len()));
    let has_leader = u8::from(!context.store.is_unavailable());
    let mut page = Page::default();
    page.gauge("etcd_server_has_leader", "Whether the member has a leader.", has_leader);
    page.gauge("etcd_server_is_leader", "Whether the member leads the cluster.", has_leader);
    page.gauge("etcd_server_is_learner", "Whether the member is a learner.", 0);
    page.gauge("etcd_server_quota_backend_bytes", "Quota of the database in bytes.", gauges.quota);
    page.labeled("etcd_server_version", "Version of the server.", "server_version", VERSION);
    page.labeled("etcd_cluster_version", "Version of the cluster.", "cluster_version", CLUSTER_VERSION);
    page.gauge("etcd_mvcc_db_total_size_in_bytes", "Size of the database file.", gauges.file_size);
    page.gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "Bytes in use in the database file.", gauges.bytes_in_use);
    page.gauge("etcd_debugging_mvcc_keys_total", "Keys, with deleted ones that are not compacted.", gauges.keys);
    page.gauge("etcd_debugging_mvcc_current_revision", "Newest revision.", gauges.revision);
    page.gauge("etcd_debugging_mvcc_compact_revision", "Revision of the last compaction.", gauges.compact_revision);
    page.gauge("etcd_debugging_mvcc_watcher_total", "Watchers.", gauges.watchers);
    page.gauge("etcd_debugging_mvcc_watch_stream_total", "Watch streams.", gauges.watch_streams);
    page.counter("etcd_mvcc_range_total", "Ranges.", counters.ranges);
    page.counter("etcd_mvcc_put_total", "Puts.", counters.puts);
    page.counter("etcd_mvcc_delete_total", "Deletes.", counters.deletes);
    page.counter("etcd_mvcc_txn_total", "Transactions.", counters.txns);
    page.gauge("etcd_debugging_lease_total", "Leases.", leases);
    page.counter("etcd_debugging_lease_granted_total", "Granted leases.", counters.leases_granted);
    page.counter("etcd_debugging_lease_revoked_total", "Revoked leases.", counters.leases_revoked);
    page.counter("etcd_debugging_lease_renewed_total", "Renewals of leases.", counters.leases_renewed);
    page.counter("etcd_debugging_server_lease_expired_total", "Expired leases.", counters.leases_expired);
    page.0
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, help, "gauge");
        self.push(format_args!("{name} {value}\n"));
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "counter");
        self.push(format_args!("{name} {value}\n"));
    }

    /// A metric that is always 1 and has its value in a label.
    fn labeled(&mut self, name: &str, help: &str, label: &str, value: &str) {
        self.head(name, help, "gauge");
        self.push(format_args!("{name}{{{label}=\"{value}\"}} 1\n"));
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        self.push(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String never fails.
        let _ = self.0.write_fmt(text);
    }
}
