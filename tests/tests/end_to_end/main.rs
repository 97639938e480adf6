//! Whole programs and documents: the controller's command, the demo, secrets in any output, the pages, and generated Python.

mod controller_command;
mod demo;
mod documents;
mod python_enums;
mod secrets;
