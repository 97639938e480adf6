//! Cisco Modeling Labs 2.x: one [`System`] per instance, over TLS or plain HTTP.
//!
//! A [`System`] is the state and the rules; [`http`] decodes, asks it, and encodes. [`serve_tls`] and [`serve_http`]
//! give it a socket; an instance that is stopped has none, so connections to it are refused. The certificate comes
//! from an [`Authority`] whose PEM file a client can be told to trust.
//!
//! Bodies and status codes are those of a real 2.9.1, as far as they are known; where they are not, the code says so.

mod authority;
mod boot;
mod hands;
pub mod http;
mod import;
mod laboratories;
mod labs;
mod licensing;
mod links;
mod options;
mod refusal;
mod serve;
mod system;
mod telemetry;
#[cfg(test)]
mod tests;
mod tokens;
mod vitals;
mod workbench;

pub use authority::{Authority, Certificate};
pub use boot::{Boot, Stage};
pub use http::router;
pub(crate) use laboratories::Founding;
pub use laboratories::{Laboratories, Presence};
pub use labs::{NewLab, NewNode};
pub use licensing::{Deregistration, LicensingRules, LicensingWords, Registration};
pub use options::Options;
pub use refusal::{Refusal, bad_gateway_page};
pub use serve::{serve_http, serve_http_at, serve_tls, serve_tls_at};
pub use system::{ADMIN_ID, System};
pub use vitals::{Hardware, Load};
