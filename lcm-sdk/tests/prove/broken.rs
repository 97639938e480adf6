//! Controllers that are broken on purpose: a prover that does not notice them proves nothing.

/// What is wrong with a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Every launch has a token of its own.
    NoClientToken,
    /// Instances that carry the worker's tag are not looked for.
    NeverAdopts,
    /// No answer is taken for "there is none".
    GcTrustsErrors,
    /// A draining worker is handled like one that stops.
    DrainIsStop,
    /// The lease is not looked at, and writes carry no token.
    NoFencing,
    /// A watch that was interrupted goes on from now.
    WatchGap,
}
