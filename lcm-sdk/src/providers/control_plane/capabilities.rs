//! Optional features of the server, read off its responses.

use parking_lot::Mutex;

use crate::lifecycle::capabilities::{Capabilities, ControlPlaneGeneration, Support};
use crate::lifecycle::json::Raw;
use crate::lifecycle::worker::NotesOnRecord;

/// An optional feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Feature {
    Versions,
    Notes,
    DesiredStatus,
    CancelDrain,
    SessionMoves,
    PauseSuppression,
    Audits,
}

impl Feature {
    fn of(self, capabilities: &mut Capabilities) -> &mut Support {
        match self {
            Self::Versions => &mut capabilities.versions,
            Self::Notes => &mut capabilities.notes,
            Self::DesiredStatus => &mut capabilities.desired_status,
            Self::CancelDrain => &mut capabilities.cancel_drain,
            Self::SessionMoves => &mut capabilities.session_moves,
            Self::PauseSuppression => &mut capabilities.pause_suppression,
            Self::Audits => &mut capabilities.audits,
        }
    }

    /// Consequence of a missing feature.
    const fn without(self) -> &'static str {
        match self {
            Self::Versions => "records have no version: concurrent writes are not detected",
            Self::Notes => "records keep no notes: they are left out of writes",
            Self::DesiredStatus => {
                "a desired status cannot be written: idle workers are drained, and external stops are not respected"
            }
            Self::CancelDrain => "drains cannot be canceled",
            Self::SessionMoves => "sessions cannot be handed back or retried: they count as active until the deadline",
            Self::PauseSuppression => "idle detection pauses workers by itself",
            Self::Audits => "audit entries and events are discarded",
        }
    }
}

/// Known features of the server. A pinned generation is not changed by responses.
#[derive(Debug)]
pub(super) struct Known {
    generation: ControlPlaneGeneration,
    capabilities: Mutex<Capabilities>,
}

impl Known {
    pub(super) fn new(generation: ControlPlaneGeneration) -> Self {
        Self { generation, capabilities: Mutex::new(generation.capabilities().unwrap_or_default()) }
    }

    pub(super) fn get(&self) -> Capabilities {
        *self.capabilities.lock()
    }

    /// The features of a pinned generation.
    pub(super) fn pinned(&self) -> Option<Capabilities> {
        self.generation.capabilities()
    }

    /// Notes what a response showed about a feature.
    pub(super) fn learn(&self, feature: Feature, support: Support) {
        if self.generation != ControlPlaneGeneration::Auto {
            return;
        }
        let before = std::mem::replace(feature.of(&mut self.capabilities.lock()), support);
        if before != support && support == Support::No {
            tracing::info!(target: "lcm::control_plane", ?feature, "{}", feature.without());
        } else if before != support {
            tracing::debug!(target: "lcm::control_plane", ?feature, ?support, "read off a response");
        }
    }

    /// Notes the fields of a listing, which show what the server has now.
    pub(super) fn learn_from_listing(&self, fields: RecordFields) {
        if fields.records > 0 {
            self.learn(Feature::Versions, support(fields.has_versions));
            self.learn(Feature::Notes, support(fields.has_notes));
        }
    }

    /// Notes the fields of a single record. A record without a field does not show that others lack it.
    pub(super) fn learn_from_record(&self, has: impl Fn(&str) -> bool) {
        let mut fields = RecordFields::default();
        fields.add(has);
        let known = self.get();
        for (feature, known, has) in
            [(Feature::Versions, known.versions, fields.has_versions), (Feature::Notes, known.notes, fields.has_notes)]
        {
            if has || known == Support::Unknown {
                self.learn(feature, support(has));
            }
        }
    }
}

/// The fields that the records of a listing have.
#[derive(Debug, Default)]
pub(super) struct RecordFields {
    records: usize,
    has_versions: bool,
    has_notes: bool,
}

impl RecordFields {
    pub(super) fn add_raw(&mut self, record: &Raw<'_>) {
        self.add(|field| record.get(field).is_some());
    }

    fn add(&mut self, has: impl Fn(&str) -> bool) {
        self.records += 1;
        self.has_versions |= has("version");
        self.has_notes |= has("metadata") || NotesOnRecord::FIELDS.iter().any(|note| has(note));
    }
}

fn support(has: bool) -> Support {
    if has { Support::Yes } else { Support::No }
}
