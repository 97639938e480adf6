//! Fake Cisco Modeling Labs 2.x controllers: one [`CmlServer`] per instance, over TLS or plain HTTP.
//!
//! A [`CmlServer`] holds the state and the rules. [`http`] decodes requests, calls it and encodes the responses.
//! [`serve_tls`] and [`serve_http`] attach it to a socket; a stopped instance has none, so its connections are refused.
//! Certificates are issued by an [`Authority`], whose PEM file clients add to their trust store.
//!
//! Bodies and status codes follow the release of the version that a server reports, from 2.7 to 2.10. Where the real
//! behavior is not known, the code documents the assumption.

mod administration;
mod annotations;
mod authority;
mod definitions;
mod diagnostics;
mod error;
mod fields;
pub mod http;
mod import;
mod labs;
mod licensing;
mod links;
mod options;
mod release;
mod server;
mod servers;
mod system_stats;
#[cfg(test)]
mod tests;
mod tokens;
mod users;

pub use authority::{Authority, Certificate};
pub use error::{CmlError, bad_gateway_page};
pub use http::{router, serve_http, serve_http_at, serve_tls, serve_tls_at};
pub use labs::{NewLab, NewNode};
pub use licensing::{Deregistration, LicensingRules, LicensingStatusNames, Registration};
pub use options::{Boot, BootStage, Options};
pub(crate) use release::version_of_image;
pub use server::{ADMIN_ID, CmlServer};
pub use servers::{CmlServers, ListenState};
pub(crate) use servers::{ServerConfig, ServersState};
pub use system_stats::{Hardware, Load};
