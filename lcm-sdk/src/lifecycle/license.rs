//! The license of a worker: its state on the record, and the next step (ADR-016).
//!
//! Registration is asynchronous: CML accepts the token with a 204 and processes it. A reconcile submits and does not
//! wait; a later one reads the outcome. The intent stays on the record until CML completes the operation or refuses it
//! for good.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::json::{FieldError, Fields};
use super::lookup::Lookup;
use super::secret::Secret;
use super::wire_enum::vocabulary;

vocabulary! {
    /// A license operation requested by an operator.
    LicenseOperation, "license operation" {
        /// Register the pending token.
        Register = "register",
        /// Return the license.
        Deregister = "deregister",
    }
}

/// The license part of a worker record. Tokens cannot be printed or serialized.
#[derive(Clone, Default, PartialEq)]
pub struct License {
    /// The control plane's description, such as `registered`; free text, never matched on.
    pub status: Option<String>,
    /// The token in use.
    pub token: Option<Secret>,
    /// The token to register next.
    pub pending_token: Option<Secret>,
    /// The operation to carry out; `None` if there is none.
    pub pending_operation: Option<LicenseOperation>,
    /// Whether the operation was submitted to CML.
    pub operation_in_progress: bool,
    /// Fields of the nested object that this version does not know, kept as they are.
    pub extra: Map<String, Value>,
}

impl License {
    /// Takes the nested `license` object and its flat siblings out of a worker's fields.
    pub(crate) fn take(worker: &mut Fields<'_>) -> Result<Self, FieldError> {
        let flat_status = worker.text("license_status")?;
        let flat_token = worker.secret("license_token")?;
        let nested = match worker.nested_secret("license", "license.")? {
            None => Self::default(),
            Some(mut fields) => Self {
                status: fields.text("status")?,
                token: fields.secret("token")?,
                pending_token: fields.secret("pending_token")?,
                pending_operation: fields.word("pending_operation")?,
                operation_in_progress: fields.switch("operation_in_progress", false)?,
                extra: fields.rest(),
            },
        };
        Ok(Self { status: nested.status.or(flat_status), token: nested.token.or(flat_token), ..nested })
    }

    /// The nested object, without its tokens.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let mut map = self.extra.clone();
        map.insert("status".into(), self.status.as_deref().into());
        map.insert("pending_operation".into(), self.pending_operation.map(LicenseOperation::as_str).into());
        map.insert("operation_in_progress".into(), self.operation_in_progress.into());
        map
    }
}

/// Omits free-form data, which may hold a secret.
impl fmt::Debug for License {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("License")
            .field("status", &self.status)
            .field("token", &self.token)
            .field("pending_token", &self.pending_token)
            .field("pending_operation", &self.pending_operation)
            .field("operation_in_progress", &self.operation_in_progress)
            .finish_non_exhaustive()
    }
}

/// Registration status from CML's `GET /licensing`.
///
/// CML does not document every spelling, so the status is kept as it is and only classified here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RegistrationStatus {
    /// The status as CML wrote it, such as `COMPLETED`.
    pub raw: String,
    /// CML's mark of its latest attempt (`register_time.attempted`): compared, never parsed as a time.
    pub attempted: Option<String>,
}

impl RegistrationStatus {
    /// A status as CML wrote it.
    pub fn from_wire(word: &str) -> Self {
        Self { raw: word.to_owned(), attempted: None }
    }

    /// The same status with CML's mark of its latest attempt.
    #[must_use]
    pub fn attempted(self, mark: &str) -> Self {
        Self { attempted: Some(mark.to_owned()), ..self }
    }

    fn stage(&self) -> RegistrationStage {
        match self.raw.trim().to_ascii_uppercase().as_str() {
            "COMPLETED" => RegistrationStage::Completed,
            "FAILED" | "EXPIRED" | "RETRY_FAILED" => RegistrationStage::Failed,
            "NOT_REGISTERED" | "UNREGISTERED" => RegistrationStage::NotRegistered,
            _ => RegistrationStage::InProgress,
        }
    }
}

impl fmt::Display for RegistrationStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.raw)
    }
}

enum RegistrationStage {
    NotRegistered,
    InProgress,
    Completed,
    Failed,
}

/// Progress of a license operation; each is one call of the control plane's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LicenseReport {
    /// The token was submitted to CML.
    StartRegistration,
    /// CML is registered; the pending token becomes the token in use.
    CompleteRegistration,
    /// CML refused for good. The server drops intent and token.
    FailRegistration,
    /// The return of the license was submitted to CML.
    StartDeregistration,
    /// The license was returned.
    CompleteDeregistration,
    /// CML refused the return for good.
    FailDeregistration,
}

/// The next step of a pending license operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LicenseStep {
    /// No operation, or none that can proceed now.
    Nothing,
    /// Submit it to CML and report the start.
    Submit(Submission),
    /// CML already has it: report the start.
    Acknowledge,
    /// CML is processing it.
    Wait,
    /// CML is done: report the outcome.
    Finish(LicenseReport),
    /// CML's status is unknown: keep the intent.
    TryLater,
}

/// How an operation is submitted to CML.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Submission {
    /// Register on a CML that has no registration.
    Register,
    /// Replace the registration that CML has.
    Reregister,
    /// Return the license.
    Deregister,
}

/// The note written to the record before a token is submitted: the mark of the attempt that CML shows until then, and a
/// fingerprint of the token. After a crash it distinguishes CML's status before the submission from the one after.
///
/// The fingerprint is just long enough to distinguish two tokens.
pub(crate) fn attempt_note(shown: Option<&str>, token: Option<&Secret>) -> String {
    let fingerprint = token.map(fingerprint).unwrap_or_default();
    format!("{}#{fingerprint}", shown.unwrap_or_default())
}

fn fingerprint(token: &Secret) -> String {
    Sha256::digest(token.expose().as_bytes()).iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// A note read from the record.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AttemptNote<'a> {
    /// The mark CML showed before; `None` if there was none.
    mark: Option<&'a str>,
    token: Option<&'a str>,
}

impl<'a> AttemptNote<'a> {
    pub(crate) fn read(note: Option<&'a str>) -> Self {
        let note = note.unwrap_or_default();
        let (mark, token) = note.rsplit_once('#').map_or((note, None), |(mark, token)| (mark, Some(token)));
        Self { mark: Some(mark).filter(|mark| !mark.is_empty()), token }
    }

    /// Whether CML had shown no attempt before the note.
    pub(crate) const fn is_of_the_first(self) -> bool {
        self.mark.is_none()
    }

    /// Whether the status CML shows stems from an attempt after the note, with the current token: then it is ours.
    fn precedes(self, status: &RegistrationStatus, wanted: Option<&Secret>) -> bool {
        let same_token = self.token.is_some() && self.token == wanted.map(fingerprint).as_deref();
        same_token && status.attempted.is_some() && status.attempted.as_deref() != self.mark
    }
}

/// Decides the next license step from the intent, CML's status, and the note about the attempt before ours: until CML
/// shows another mark, its status belongs to that earlier attempt.
pub(crate) fn next_step(license: &License, said: &Lookup<RegistrationStatus>, note: Option<&str>) -> LicenseStep {
    let Some(operation) = license.pending_operation else { return LicenseStep::Nothing };
    let status = match said {
        Lookup::NotRequested => return LicenseStep::Nothing,
        Lookup::Unknown(_) | Lookup::Absent => return LicenseStep::TryLater,
        Lookup::Found(status) => status,
    };
    match operation {
        LicenseOperation::Register => next_of_registration(license, status, AttemptNote::read(note)),
        // 400 "already de-registered" is success, so sending it again after a crash is safe.
        LicenseOperation::Deregister => match status.stage() {
            RegistrationStage::NotRegistered if license.operation_in_progress => {
                LicenseStep::Finish(LicenseReport::CompleteDeregistration)
            }
            RegistrationStage::NotRegistered
            | RegistrationStage::InProgress
            | RegistrationStage::Completed
            | RegistrationStage::Failed => LicenseStep::Submit(Submission::Deregister),
        },
    }
}

fn next_of_registration(license: &License, status: &RegistrationStatus, note: AttemptNote<'_>) -> LicenseStep {
    // An intent without a token cannot be submitted, and is not ours to drop.
    let submit = |submission| match &license.pending_token {
        Some(_) => LicenseStep::Submit(submission),
        None => LicenseStep::TryLater,
    };
    let of_an_earlier_attempt = status.attempted.is_some() && status.attempted.as_deref() == note.mark;
    let is_ours = note.precedes(status, license.pending_token.as_ref());
    match (license.operation_in_progress, status.stage()) {
        // Submitted by a reconcile that crashed before it was recorded; submitting it again would do it twice.
        (false, RegistrationStage::InProgress | RegistrationStage::Completed | RegistrationStage::Failed)
            if is_ours =>
        {
            LicenseStep::Acknowledge
        }
        // A registration from before the submission is an older one: replace it.
        (false, RegistrationStage::Completed) => submit(Submission::Reregister),
        (false, RegistrationStage::NotRegistered | RegistrationStage::Failed) => submit(Submission::Register),
        (_, RegistrationStage::InProgress) => LicenseStep::Wait,
        (true, RegistrationStage::Completed | RegistrationStage::Failed) if of_an_earlier_attempt => LicenseStep::Wait,
        (true, RegistrationStage::Completed) => LicenseStep::Finish(LicenseReport::CompleteRegistration),
        (true, RegistrationStage::Failed) => LicenseStep::Finish(LicenseReport::FailRegistration),
        // CML has lost the registration, after a reset for example.
        (true, RegistrationStage::NotRegistered) => submit(Submission::Register),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::failure::{CallFailure, FailureKind};

    fn license(operation: Option<LicenseOperation>, in_progress: bool) -> License {
        License {
            pending_operation: operation,
            pending_token: Some(Secret::from("token")),
            operation_in_progress: in_progress,
            ..License::default()
        }
    }

    fn next_step(license: &License, said: &Lookup<RegistrationStatus>) -> LicenseStep {
        super::next_step(license, said, None)
    }

    fn said(word: &str) -> Lookup<RegistrationStatus> {
        Lookup::Found(RegistrationStatus::from_wire(word))
    }

    #[test]
    fn registrations_are_submitted_once() {
        use LicenseOperation::Register;
        let fresh = license(Some(Register), false);
        assert_eq!(next_step(&fresh, &said("NOT_REGISTERED")), LicenseStep::Submit(Submission::Register));
        assert_eq!(next_step(&fresh, &said("COMPLETED")), LicenseStep::Submit(Submission::Reregister));
        let submitted = license(Some(Register), true);
        assert_eq!(next_step(&submitted, &said("IN_PROGRESS")), LicenseStep::Wait);
        assert_eq!(next_step(&submitted, &said("SOMETHING_NEW")), LicenseStep::Wait);
        assert_eq!(next_step(&submitted, &said("COMPLETED")), LicenseStep::Finish(LicenseReport::CompleteRegistration));
        for failure in ["FAILED", "EXPIRED", "RETRY_FAILED"] {
            assert_eq!(next_step(&submitted, &said(failure)), LicenseStep::Finish(LicenseReport::FailRegistration));
        }
    }

    #[test]
    fn lost_registrations_are_submitted_again() {
        let submitted = license(Some(LicenseOperation::Register), true);
        assert_eq!(next_step(&submitted, &said("NOT_REGISTERED")), LicenseStep::Submit(Submission::Register));
    }

    #[test]
    fn status_of_an_earlier_attempt_is_ignored() {
        let submitted = license(Some(LicenseOperation::Register), true);
        for word in ["COMPLETED", "EXPIRED"] {
            let marked = |mark| Lookup::Found(RegistrationStatus::from_wire(word).attempted(mark));
            assert_eq!(super::next_step(&submitted, &marked("monday"), Some("monday")), LicenseStep::Wait);
            let tuesday = super::next_step(&submitted, &marked("tuesday"), Some("monday"));
            assert!(matches!(tuesday, LicenseStep::Finish(_)), "{tuesday:?}");
        }
    }

    #[test]
    fn submission_is_not_repeated_after_a_crash() {
        let fresh = license(Some(LicenseOperation::Register), false);
        for before in [None, Some("monday")] {
            let note = attempt_note(before, fresh.pending_token.as_ref());
            for word in ["IN_PROGRESS", "COMPLETED", "FAILED"] {
                let shown = |mark| Lookup::Found(RegistrationStatus::from_wire(word).attempted(mark));
                let step = super::next_step(&fresh, &shown("tuesday"), Some(&note));
                assert_eq!(step, LicenseStep::Acknowledge, "{word} after {before:?}");
                let other = License { pending_token: Some(Secret::from("another")), ..fresh.clone() };
                let step = super::next_step(&other, &shown("tuesday"), Some(&note));
                assert_ne!(step, LicenseStep::Acknowledge, "{word} is of another token");
                if let Some(before) = before {
                    let step = super::next_step(&fresh, &shown(before), Some(&note));
                    assert_ne!(step, LicenseStep::Acknowledge, "{word} is of an earlier attempt");
                }
            }
            assert!(!note.contains("token"), "{note}");
        }
    }

    #[test]
    fn unanswered_cml_keeps_the_intent() {
        let fresh = license(Some(LicenseOperation::Register), false);
        let unknown = Lookup::Unknown(CallFailure::new(FailureKind::Unreachable, "connection refused"));
        assert_eq!(next_step(&fresh, &unknown), LicenseStep::TryLater);
        assert_eq!(next_step(&license(None, false), &unknown), LicenseStep::Nothing);
        for in_progress in [false, true] {
            let without_token = License { pending_token: None, operation_in_progress: in_progress, ..fresh.clone() };
            assert_eq!(next_step(&without_token, &said("NOT_REGISTERED")), LicenseStep::TryLater);
        }
    }

    #[test]
    fn finished_deregistrations_are_reported() {
        let submitted = license(Some(LicenseOperation::Deregister), true);
        assert_eq!(
            next_step(&submitted, &said("NOT_REGISTERED")),
            LicenseStep::Finish(LicenseReport::CompleteDeregistration)
        );
        assert_eq!(next_step(&submitted, &said("COMPLETED")), LicenseStep::Submit(Submission::Deregister));
    }
}
