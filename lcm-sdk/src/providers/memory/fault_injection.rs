use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::lifecycle::failure::{CallFailure, FailureKind};

/// How many calls a model remembers; the oldest go first.
const REMEMBERED: usize = 100_000;

/// What goes wrong with a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and nothing is done.
    Fail(CallFailure),
    /// It is carried out, and its answer is lost.
    LoseAnswer,
}

/// What was asked of a model, and what is to go wrong with it.
#[derive(Debug, Default)]
pub(super) struct Trouble(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    ahead: VecDeque<(Option<String>, Fault)>,
    calls: VecDeque<String>,
}

impl Trouble {
    /// Plans a fault for the next call, or the next call of an operation.
    pub(super) fn plan(&self, operation: Option<&str>, fault: Fault) {
        self.0.lock().ahead.push_back((operation.map(str::to_owned), fault));
    }

    /// What was asked, oldest first.
    pub(super) fn calls(&self) -> Vec<String> {
        self.0.lock().calls.iter().cloned().collect()
    }

    /// Makes a call: remembers it, and carries it out unless a fault says otherwise.
    pub(super) fn pass<T>(
        &self,
        operation: &str,
        about: &str,
        work: impl FnOnce() -> Result<T, CallFailure>,
    ) -> Result<T, CallFailure> {
        let fault = {
            let mut state = self.0.lock();
            if state.calls.len() == REMEMBERED {
                state.calls.pop_front();
            }
            state.calls.push_back(format!("{operation} {about}"));
            let hit = state.ahead.iter().position(|(of, _)| of.as_deref().is_none_or(|of| of == operation));
            hit.and_then(|index| state.ahead.remove(index)).map(|(_, fault)| fault)
        };
        match fault {
            None => work(),
            Some(Fault::Fail(failure)) => Err(failure),
            Some(Fault::LoseAnswer) => {
                // Whatever it came to, nobody hears of it.
                drop(work());
                Err(CallFailure::new(FailureKind::Unclear, "the answer was lost"))
            }
        }
    }
}
