//! The license of a worker: its state on the record, and the next step (ADR-016).
//!
//! Registration is asynchronous: CML accepts the token with a 204 and processes it. A reconcile submits and does not
//! wait; a later one reads the outcome. The intent stays on the record until CML completes the operation or refuses it
//! for good.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::json::Fields;
use super::lookup::Lookup;
use super::secret::Secret;
use super::time::{self, Timestamp};
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

#[cfg(any(feature = "runtime", test))]
/// A license operation that the control plane requests beside the record, as in
/// `{"operation": "register", "token": "…", "reregister": false}`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LicenseIntent {
    operation: LicenseOperation,
    token: Option<Secret>,
    origin: IntentOrigin,
}

#[cfg(any(feature = "runtime", test))]
impl LicenseIntent {
    /// Reads an intent; `None` if the text names no operation.
    ///
    /// # Errors
    /// If it is malformed. The error does not quote the text, which contains a token.
    pub(crate) fn from_json(text: &str) -> Result<Option<Self>, InvalidIntent> {
        let fields: Map<String, Value> = serde_json::from_str(text).map_err(|_| InvalidIntent)?;
        let operation = match fields.get("operation") {
            None | Some(Value::Null) => return Ok(None),
            Some(word) => word.as_str().and_then(|word| word.parse().ok()).ok_or(InvalidIntent)?,
        };
        let token = match fields.get("token") {
            None | Some(Value::Null) => None,
            Some(token) => Some(Secret::from(token.as_str().ok_or(InvalidIntent)?)),
        };
        let origin = match fields.get("reregister") {
            None | Some(Value::Null | Value::Bool(false)) => IntentOrigin::Apart,
            Some(Value::Bool(true)) => IntentOrigin::ApartAnew,
            Some(_) => return Err(InvalidIntent),
        };
        Ok(Some(Self { operation, token, origin }))
    }
}

#[cfg(any(feature = "runtime", test))]
/// A malformed license intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid license request: expected an object with operation, token and reregister")]
pub(crate) struct InvalidIntent;

/// Origin of a pending operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum IntentOrigin {
    /// The record, which also shows whether the operation is in progress.
    #[default]
    Record,
    /// A request beside the record. An operation that CML shows as completed is not carried out again.
    Apart,
    /// A request beside the record to replace the registration that CML has.
    ApartAnew,
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
    /// Origin of the operation. Not part of the record.
    pub intent_origin: IntentOrigin,
    /// Fields of the nested object that this version does not know, kept as they are.
    pub extra: Map<String, Value>,
}

impl License {
    /// Takes the nested `license` object and its flat siblings out of a worker's fields.
    pub(crate) fn take(worker: &mut Fields<'_>) -> Self {
        let flat_status = worker.optional(|fields| fields.text("license_status"));
        let flat_token = worker.optional(|fields| fields.secret("license_token"));
        let nested = match worker.optional(|fields| fields.nested_secret("license", "license.")) {
            None => Self::default(),
            Some(mut fields) => Self {
                status: fields.optional(|fields| fields.text("status")),
                token: fields.optional(|fields| fields.secret("token")),
                pending_token: fields.optional(|fields| fields.secret("pending_token")),
                pending_operation: fields.optional(|fields| fields.word("pending_operation")),
                operation_in_progress: fields
                    .optional(|fields| fields.switch("operation_in_progress"))
                    .unwrap_or(false),
                intent_origin: IntentOrigin::Record,
                extra: worker.close(fields),
            },
        };
        Self { status: nested.status.or(flat_status), token: nested.token.or(flat_token), ..nested }
    }

    #[cfg(any(feature = "runtime", test))]
    /// Takes an operation that was requested beside the record. Whether it is in progress follows from the note about
    /// our attempt.
    pub(crate) fn add_intent(&mut self, intent: LicenseIntent, note: Option<&str>) {
        let LicenseIntent { operation, token, origin } = intent;
        self.operation_in_progress = match operation {
            LicenseOperation::Register => AttemptNote::read(note).names(token.as_ref()),
            LicenseOperation::Deregister => false,
        };
        (self.pending_operation, self.pending_token, self.intent_origin) = (Some(operation), token, origin);
    }

    /// Whether CML's status decides the next step. A registration that has no token to submit needs no call.
    pub(crate) fn needs_cml(&self) -> bool {
        match self.pending_operation {
            Some(LicenseOperation::Register) => self.pending_token.is_some() || self.operation_in_progress,
            Some(LicenseOperation::Deregister) => true,
            None => false,
        }
    }

    /// The nested object, without its tokens.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let mut map = self.extra.clone();
        let mut put = |field: &str, value: Value| {
            // An unreadable value stays until there is another one.
            if !(value.is_null() && map.contains_key(field)) {
                map.insert(field.to_owned(), value);
            }
        };
        put("status", self.status.as_deref().into());
        put("pending_operation", self.pending_operation.map(LicenseOperation::as_str).into());
        let is_unreadable = !self.operation_in_progress && self.extra.contains_key("operation_in_progress");
        put("operation_in_progress", (!is_unreadable).then_some(self.operation_in_progress).into());
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
            .field("intent_origin", &self.intent_origin)
            .finish_non_exhaustive()
    }
}

/// Registration status from CML's `GET /licensing`.
///
/// CML does not document every spelling, so the status is kept as it is and only classified here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

impl LicenseReport {
    /// Whether it ends the operation.
    pub const fn is_final(self) -> bool {
        match self {
            Self::StartRegistration | Self::StartDeregistration => false,
            Self::CompleteRegistration
            | Self::FailRegistration
            | Self::CompleteDeregistration
            | Self::FailDeregistration => true,
        }
    }
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
    /// CML is done: report the success.
    Complete(LicenseReport),
    /// It can never succeed: report the failure.
    Fail(LicenseFailure),
    /// CML's status is unknown: keep the intent.
    TryLater,
}

/// Why a registration failed although CML refused no call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LicenseFailure {
    /// The record has no token to submit.
    TokenMissing,
    /// CML shows a failed registration.
    Reported,
    /// CML did not finish the registration in time.
    TimedOut,
}

impl LicenseStep {
    /// Whether CML has not finished a registration that it may have received.
    pub(crate) const fn is_unfinished(self, license: &License) -> bool {
        match self {
            Self::Wait => true,
            Self::Submit(Submission::Register | Submission::Reregister) => license.operation_in_progress,
            Self::Submit(Submission::Deregister)
            | Self::Nothing
            | Self::Acknowledge
            | Self::Complete(_)
            | Self::Fail(_)
            | Self::TryLater => false,
        }
    }
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

/// Stands for a token in a history, which holds no secrets.
const TOKEN_MARK: &str = "fingerprint:";

/// The mark of a token. Decisions about the mark are those about the token.
pub(crate) fn token_mark(token: &Secret) -> String {
    format!("{TOKEN_MARK}{}", fingerprint(token))
}

fn fingerprint(token: &Secret) -> String {
    if let Some(known) = token.expose().strip_prefix(TOKEN_MARK) {
        return known.to_owned();
    }
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

    /// Whether the note is about this token.
    fn names(self, token: Option<&Secret>) -> bool {
        self.token.is_some() && self.token == token.map(fingerprint).as_deref()
    }

    /// Whether the status CML shows stems from an attempt after the note, with the current token: then it is ours.
    fn precedes(self, status: &RegistrationStatus, wanted: Option<&Secret>) -> bool {
        self.names(wanted) && status.attempted.is_some() && status.attempted.as_deref() != self.mark
    }
}

/// The note about a registration that CML has not finished: when the wait began, and a fingerprint of the token. A wait
/// for another token does not count.
pub(crate) fn wait_note(token: Option<&Secret>, since: Timestamp) -> String {
    format!(
        "{}@{}",
        since.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true),
        token.map(fingerprint).unwrap_or_default()
    )
}

/// When the wait for the registration of this token began; `None` if the note is about another token or unreadable.
pub(crate) fn waiting_since(note: Option<&str>, token: Option<&Secret>) -> Option<Timestamp> {
    let (since, of) = note?.split_once('@')?;
    if of != token.map(fingerprint).unwrap_or_default() {
        return None;
    }
    time::parse(since)
}

/// Decides the next license step from the intent, CML's status, and the note about the attempt before ours: until CML
/// shows another mark, its status belongs to that earlier attempt.
pub(crate) fn next_step(license: &License, said: &Lookup<RegistrationStatus>, note: Option<&str>) -> LicenseStep {
    let Some(operation) = license.pending_operation else { return LicenseStep::Nothing };
    if !license.needs_cml() {
        return LicenseStep::Fail(LicenseFailure::TokenMissing);
    }
    let status = match said {
        Lookup::NotRequested => return LicenseStep::Nothing,
        Lookup::Unknown(_) | Lookup::Absent => return LicenseStep::TryLater,
        Lookup::Found(status) => status,
    };
    match operation {
        LicenseOperation::Register => next_of_registration(license, status, AttemptNote::read(note)),
        // 400 "already de-registered" is success, so sending it again after a crash is safe.
        LicenseOperation::Deregister => match status.stage() {
            RegistrationStage::NotRegistered
                if license.operation_in_progress || license.intent_origin != IntentOrigin::Record =>
            {
                LicenseStep::Complete(LicenseReport::CompleteDeregistration)
            }
            RegistrationStage::NotRegistered
            | RegistrationStage::InProgress
            | RegistrationStage::Completed
            | RegistrationStage::Failed => LicenseStep::Submit(Submission::Deregister),
        },
    }
}

fn next_of_registration(license: &License, status: &RegistrationStatus, note: AttemptNote<'_>) -> LicenseStep {
    let submit = |submission| match &license.pending_token {
        Some(_) => LicenseStep::Submit(submission),
        None => LicenseStep::Fail(LicenseFailure::TokenMissing),
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
        // Completed by another controller, or by this one before it lost its notes.
        (false, RegistrationStage::Completed) if license.intent_origin == IntentOrigin::Apart => {
            LicenseStep::Complete(LicenseReport::CompleteRegistration)
        }
        // A registration from before the submission is an older one: replace it.
        (false, RegistrationStage::Completed) => submit(Submission::Reregister),
        (false, RegistrationStage::NotRegistered | RegistrationStage::Failed) => submit(Submission::Register),
        (_, RegistrationStage::InProgress) => LicenseStep::Wait,
        (true, RegistrationStage::Completed | RegistrationStage::Failed) if of_an_earlier_attempt => LicenseStep::Wait,
        (true, RegistrationStage::Completed) => LicenseStep::Complete(LicenseReport::CompleteRegistration),
        (true, RegistrationStage::Failed) => LicenseStep::Fail(LicenseFailure::Reported),
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

    fn requested(text: &str, note: Option<&str>) -> License {
        let mut license = License::default();
        license.add_intent(LicenseIntent::from_json(text).expect("valid").expect("an operation"), note);
        license
    }

    const REGISTER: &str = r#"{"operation": "register", "token": "token", "reregister": false}"#;
    const REREGISTER: &str = r#"{"operation": "register", "token": "token", "reregister": true}"#;
    const DEREGISTER: &str = r#"{"operation": "deregister", "token": null}"#;

    #[test]
    fn completed_request_is_reported_and_not_repeated() {
        let complete = LicenseStep::Complete(LicenseReport::CompleteRegistration);
        assert_eq!(next_step(&requested(REGISTER, None), &said("COMPLETED")), complete);
        assert_eq!(
            next_step(&requested(DEREGISTER, None), &said("NOT_REGISTERED")),
            LicenseStep::Complete(LicenseReport::CompleteDeregistration)
        );
        for (text, status, submission) in [
            (REGISTER, "NOT_REGISTERED", Submission::Register),
            (REREGISTER, "COMPLETED", Submission::Reregister),
            (DEREGISTER, "COMPLETED", Submission::Deregister),
        ] {
            assert_eq!(next_step(&requested(text, None), &said(status)), LicenseStep::Submit(submission), "{text}");
        }
    }

    #[test]
    fn request_is_in_progress_after_our_note() {
        let note = attempt_note(Some("earlier"), Some(&Secret::from("token")));
        let license = requested(REREGISTER, Some(&note));
        assert!(license.operation_in_progress);
        let shows = |word: &str, mark: &str| Lookup::Found(RegistrationStatus::from_wire(word).attempted(mark));
        let step = |said: &Lookup<RegistrationStatus>| super::next_step(&license, said, Some(&note));
        assert_eq!(step(&shows("COMPLETED", "ours")), LicenseStep::Complete(LicenseReport::CompleteRegistration));
        assert_eq!(step(&shows("COMPLETED", "earlier")), LicenseStep::Wait);
        assert_eq!(step(&shows("FAILED", "ours")), LicenseStep::Fail(LicenseFailure::Reported));
        let of_another = attempt_note(None, Some(&Secret::from("another")));
        assert!(!requested(REREGISTER, Some(&of_another)).operation_in_progress);
    }

    #[test]
    fn malformed_request_is_not_quoted() {
        for bad in [
            "hunter2",
            r#"["hunter2"]"#,
            r#"{"operation": "hunter2"}"#,
            r#"{"operation": "register", "token": ["hunter2"]}"#,
            r#"{"operation": "register", "token": "hunter2", "reregister": "yes"}"#,
        ] {
            let error = LicenseIntent::from_json(bad).expect_err(bad);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        let read = LicenseIntent::from_json(r#"{"operation": "register", "token": "hunter2"}"#).expect("valid");
        assert!(!format!("{read:?}").contains("hunter2"));
        assert_eq!(LicenseIntent::from_json(r#"{"status": "registered"}"#), Ok(None));
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
        assert_eq!(
            next_step(&submitted, &said("COMPLETED")),
            LicenseStep::Complete(LicenseReport::CompleteRegistration)
        );
        for failure in ["FAILED", "EXPIRED", "RETRY_FAILED"] {
            assert_eq!(next_step(&submitted, &said(failure)), LicenseStep::Fail(LicenseFailure::Reported));
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
            assert!(matches!(tuesday, LicenseStep::Complete(_) | LicenseStep::Fail(_)), "{tuesday:?}");
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
    }

    #[test]
    fn intent_without_a_token_fails() {
        let fresh = License { pending_token: None, ..license(Some(LicenseOperation::Register), false) };
        let unknown = Lookup::Unknown(CallFailure::new(FailureKind::Unreachable, "connection refused"));
        for said in [&Lookup::NotRequested, &unknown, &said("COMPLETED")] {
            assert_eq!(next_step(&fresh, said), LicenseStep::Fail(LicenseFailure::TokenMissing), "{said:?}");
        }
        // A server may drop the token once it was submitted.
        let submitted = License { operation_in_progress: true, ..fresh };
        assert_eq!(next_step(&submitted, &said("IN_PROGRESS")), LicenseStep::Wait);
        assert_eq!(next_step(&submitted, &said("NOT_REGISTERED")), LicenseStep::Fail(LicenseFailure::TokenMissing));
    }

    #[test]
    fn wait_counts_for_its_own_token_only() {
        let (token, other) = (Secret::from("token"), Secret::from("another"));
        let since = time::parse("2026-02-06T08:00:00.25Z").expect("valid");
        let note = wait_note(Some(&token), since);
        assert!(!note.contains("token"), "{note}");
        assert_eq!(waiting_since(Some(&note), Some(&token)), Some(since));
        for (note, token) in [(Some(note.as_str()), Some(&other)), (None, Some(&token)), (Some("noon"), Some(&token))] {
            assert_eq!(waiting_since(note, token), None);
        }
    }

    #[test]
    fn finished_deregistrations_are_reported() {
        let submitted = license(Some(LicenseOperation::Deregister), true);
        assert_eq!(
            next_step(&submitted, &said("NOT_REGISTERED")),
            LicenseStep::Complete(LicenseReport::CompleteDeregistration)
        );
        assert_eq!(next_step(&submitted, &said("COMPLETED")), LicenseStep::Submit(Submission::Deregister));
    }
}
