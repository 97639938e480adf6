//! Whole programs and documents: the controller's command, the demo, secrets in any output, and the pages.

mod controller_command;
mod demo;
mod documents;
mod secrets;
