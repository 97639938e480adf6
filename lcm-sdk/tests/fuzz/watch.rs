//! Arbitrary etcd keys under a watch.

use std::collections::BTreeSet;
use std::sync::Arc;

use lcm_sdk::controller::{Shutdown, WatchConfig, WatchEvent, Watcher, first_segment};
use lcm_sdk::providers::memory::MemoryCoordination;
use lcm_sdk::telemetry::Telemetry;
use proptest::prelude::*;
use proptest::sample::select;

use crate::cases::{any_bytes, any_text, check, like_bytes};

const KEYS: &[&[u8]] =
    &[b"/workers/w-1", b"/lcm/workers/w-1/desired_state", b"/workers//w-2/", b"/workers/\xff", b"/workers", b"/"];

#[test]
fn key_names_one_resource_or_none() {
    let key = prop_oneof![3 => like_bytes(select(KEYS).prop_map(<[u8]>::to_vec)), 1 => any_bytes()];
    let prefix = select(vec!["/workers/", "/lcm/workers/", "/", ""]);
    check("keys of etcd", 5_000, "tests/fuzz/seeds/keys.txt", (prefix, key), |(prefix, key)| {
        if let Some(id) = first_segment(prefix, &key) {
            prop_assert!(!id.is_empty() && !id.contains('/'), "{id:?}");
            prop_assert!(key.starts_with(prefix.as_bytes()));
        }
        Ok(())
    });
}

#[test]
fn watch_reports_every_key_that_names_a_resource() {
    let key = prop_oneof![any_text(), any_text().prop_map(|text| format!("/workers/{text}"))];
    let writes = proptest::collection::vec((key, any_text()), 1..20);
    check("writes under a watch", 400, "tests/fuzz/seeds/watch.txt", writes, |writes| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let etcd = MemoryCoordination::new();
            let config = WatchConfig::new(["/workers/"]);
            let (watcher, _handle) = Watcher::new(Arc::new(etcd.clone()), config, Telemetry::default());
            let shutdown = Shutdown::new();
            let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
            let running = tokio::spawn(watcher.run(move |event| drop(sender.send(event)), shutdown.clone()));
            prop_assert!(matches!(events.recv().await, Some(WatchEvent::Resync(_))));
            for (key, value) in &writes {
                etcd.put(key, value);
            }
            // A marker that is always reported, so that the loop below ends.
            etcd.put("/workers/the-end", "");
            let mut expected: BTreeSet<String> =
                writes.iter().filter_map(|(key, _)| first_segment("/workers/", key.as_bytes())).collect();
            expected.insert("the-end".to_owned());
            while !expected.is_empty() {
                match events.recv().await {
                    Some(WatchEvent::Changed(id)) => drop(expected.remove(&id)),
                    Some(WatchEvent::Resync(_)) => break,
                    None => return Err(TestCaseError::fail(format!("not reported: {expected:?}"))),
                }
            }
            shutdown.request();
            running.await.map_err(|error| TestCaseError::fail(error.to_string()))
        })
    });
}
