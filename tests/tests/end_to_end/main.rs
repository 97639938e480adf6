//! Whole programs and documents: the commands, the demo, secrets in any output, traces, the pages, and generated Python.

mod controller_command;
mod demo;
mod documents;
mod lcm_command;
mod python_enums;
mod secrets;
mod traces;
