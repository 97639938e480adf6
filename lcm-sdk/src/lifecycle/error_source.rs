//! What a failure came from.

use std::error::Error;
use std::fmt;
use std::hash::{Hash, Hasher};

#[expect(clippy::disallowed_types, reason = "an error is not ours to copy, and nobody decides by it")]
type Shared = std::sync::Arc<dyn Error + Send + Sync>;

/// The error that something came from, if it was kept.
///
/// It explains and does not distinguish: two of them are always equal, and none is printed or serialised.
#[derive(Clone, Default)]
pub struct Cause(Option<Shared>);

impl Cause {
    /// This error.
    pub fn new(error: impl Error + Send + Sync + 'static) -> Self {
        let boxed: Box<dyn Error + Send + Sync> = Box::new(error);
        Self(Some(boxed.into()))
    }

    /// The error, if it was kept.
    pub fn error(&self) -> Option<&(dyn Error + 'static)> {
        self.0.as_deref().map(|error| error as &(dyn Error + 'static))
    }
}

impl PartialEq for Cause {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Cause {}

impl Hash for Cause {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Cause(..)" } else { "Cause(None)" })
    }
}
