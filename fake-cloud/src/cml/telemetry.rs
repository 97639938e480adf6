//! What a system remembers of what people did: the source of idle detection.

use std::collections::VecDeque;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

/// How many events are remembered.
const REMEMBERED: usize = 1_000;

#[derive(Default)]
pub(super) struct Telemetry(VecDeque<Value>);

impl Telemetry {
    pub(super) fn note(&mut self, category: &str, data: Value, now: DateTime<Utc>) {
        let timestamp = now.to_rfc3339_opts(SecondsFormat::Micros, false);
        self.0.push_back(json!({"category": category, "timestamp": timestamp, "data": data}));
        if self.0.len() > REMEMBERED {
            self.0.pop_front();
        }
    }

    pub(super) fn list(&self) -> Value {
        self.0.iter().cloned().collect::<Vec<_>>().into()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
