//! The licence of a worker: intents, and how carrying them out goes.

use std::sync::Arc;

use serde_json::{Value, json};

use super::input::Input;
use super::problem::Problem;
use super::records::Records;
use super::worker::Worker;

/// A licence operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Register a token.
    Register,
    /// Give the licence back.
    Deregister,
}

/// A step of a licence operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// An operator wants it.
    Request,
    /// It was handed to CML.
    Start,
    /// CML has done it.
    Complete,
    /// CML gave a final no.
    Fail,
}

impl Operation {
    const fn word(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::Deregister => "deregister",
        }
    }
}

impl Records {
    /// Takes a licence operation one step on.
    ///
    /// *Request* leaves the intent (and the token) on the record. *Start* marks it as handed over. *Complete* makes
    /// the pending token the token, or forgets it. *Fail* clears intent and pending token: it is the last word.
    /// All but *request* can be repeated without harm.
    ///
    /// # Errors
    /// 404, 409 on another version or while the other operation is pending, 422.
    pub fn license_step(
        &self,
        id: &str,
        expected: Option<u64>,
        operation: Operation,
        step: Step,
        input: &Input,
    ) -> Result<Arc<Worker>, Problem> {
        let stepped = self.change(id, expected, |draft| {
            let token = match (operation, step) {
                (Operation::Register, Step::Request) => {
                    Value::from(input.required_text("token", "a Smart Licensing token")?)
                }
                _ => Value::Null,
            };
            let error = input.text("error")?.or(input.text("error_message")?).map(str::to_owned);
            let license = draft.worker.object_mut("license");
            let pending = license.get("pending_operation").and_then(Value::as_str);
            if let Some(other) = pending.filter(|pending| *pending != operation.word() && step != Step::Request) {
                let current = format!("{other} pending");
                return Err(Problem::WrongState {
                    action: "go on with the licence",
                    current,
                    accepted: operation.word().into(),
                });
            }
            match step {
                Step::Request => {
                    license.insert("pending_operation".into(), operation.word().into());
                    license.insert("pending_token".into(), token);
                    license.insert("operation_in_progress".into(), false.into());
                }
                Step::Start => drop(license.insert("operation_in_progress".into(), true.into())),
                Step::Complete => {
                    let pending = license.get("pending_token").cloned().unwrap_or_default();
                    match operation {
                        Operation::Register if !pending.is_null() => drop(license.insert("token".into(), pending)),
                        Operation::Register => {}
                        Operation::Deregister => drop(license.insert("token".into(), Value::Null)),
                    }
                    let status = if operation == Operation::Register { "registered" } else { "unregistered" };
                    license.insert("status".into(), status.into());
                    license.insert("last_error".into(), Value::Null);
                }
                Step::Fail => drop(license.insert("last_error".into(), error.into())),
            }
            if matches!(step, Step::Complete | Step::Fail) {
                license.insert("pending_token".into(), Value::Null);
                license.insert("pending_operation".into(), Value::Null);
                license.insert("operation_in_progress".into(), false.into());
            }
            draft.announce(event(operation, step), json!({"operation": operation.word()}));
            Ok(())
        });
        Ok(stepped?.0)
    }
}

const fn event(operation: Operation, step: Step) -> &'static str {
    match (operation, step) {
        (Operation::Register, Step::Request) => "cml_worker.license.registration.requested.v1",
        (Operation::Register, Step::Start) => "cml_worker.license.registration.started.v1",
        (Operation::Register, Step::Complete) => "cml_worker.license.registration.completed.v1",
        (Operation::Register, Step::Fail) => "cml_worker.license.registration.failed.v1",
        (Operation::Deregister, Step::Request) => "cml_worker.license.deregistration.requested.v1",
        (Operation::Deregister, Step::Start) => "cml_worker.license.deregistration.started.v1",
        (Operation::Deregister, Step::Complete) => "cml_worker.license.deregistration.completed.v1",
        (Operation::Deregister, Step::Fail) => "cml_worker.license.deregistration.failed.v1",
    }
}
