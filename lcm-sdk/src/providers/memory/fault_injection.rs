//! Records calls and injects faults.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::lifecycle::failure::{CallFailure, FailureKind};

/// Maximum number of recorded calls; the oldest are dropped.
const MAX_CALLS: usize = 100_000;

/// A fault injected into one call of a memory port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The call fails and has no effect.
    Fail(CallFailure),
    /// The call is executed, but its response is lost: the caller sees
    /// [`Unclear`](crate::FailureKind::Unclear).
    LoseResponse,
}

/// Recorded calls and planned faults of a memory port.
#[derive(Debug, Default)]
pub(super) struct FaultInjection(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    planned: VecDeque<(Option<String>, Fault)>,
    calls: VecDeque<String>,
}

impl FaultInjection {
    /// Plans a fault for the next call, or for the next call of `operation`, which may include the argument.
    pub(super) fn plan(&self, operation: Option<&str>, fault: Fault) {
        self.0.lock().planned.push_back((operation.map(str::to_owned), fault));
    }

    /// Recorded calls as `operation argument`, oldest first.
    pub(super) fn calls(&self) -> Vec<String> {
        self.0.lock().calls.iter().cloned().collect()
    }

    /// Records a call and executes it, unless a fault is planned for it.
    pub(super) fn call<T>(
        &self,
        operation: &str,
        argument: &str,
        work: impl FnOnce() -> Result<T, CallFailure>,
    ) -> Result<T, CallFailure> {
        let fault = {
            let mut state = self.0.lock();
            if state.calls.len() == MAX_CALLS {
                state.calls.pop_front();
            }
            let call = format!("{operation} {argument}");
            let matches = |of: &str| of == operation || of == call;
            let hit = state.planned.iter().position(|(of, _)| of.as_deref().is_none_or(matches));
            state.calls.push_back(call);
            hit.and_then(|index| state.planned.remove(index)).map(|(_, fault)| fault)
        };
        match fault {
            None => work(),
            Some(Fault::Fail(failure)) => Err(failure),
            Some(Fault::LoseResponse) => {
                drop(work());
                Err(CallFailure::new(FailureKind::Unclear, "the response was lost"))
            }
        }
    }
}
