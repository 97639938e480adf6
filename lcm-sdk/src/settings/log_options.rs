//! Vocabularies that only settings use.

use crate::lifecycle::wire_enum::vocabulary;

vocabulary! {
    /// How logs are written.
    LogFormat, "log format" {
        /// Lines for people.
        People = "people" | "text",
        /// One JSON object on each line.
        Json = "json",
    }
}

vocabulary! {
    /// How much is logged; each level includes those after it.
    LogLevel, "log level" {
        /// Every step.
        Trace = "trace",
        /// What helps to find a fault.
        Debug = "debug",
        /// What happens.
        Info = "info",
        /// What is not as it should be.
        Warn = "warn" | "warning",
        /// What went wrong.
        Error = "error" | "critical",
        /// Nothing.
        Off = "off",
    }
}
