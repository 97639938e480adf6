//! Who can reach a cloud.

use std::io;
use std::net::IpAddr;

/// Who can reach a cloud. Nothing in it is worth protecting, but whoever reaches it can make a test pass or fail.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Exposure {
    /// This machine alone: any other address to listen on is refused.
    #[default]
    Loopback,
    /// Whoever reaches the address it listens on.
    Network {
        /// What changes over the admin API need in `X-API-Key`.
        admin_key: String,
    },
}

impl Exposure {
    /// Open to the network, with a key that nobody can guess.
    pub fn network() -> Self {
        Self::Network { admin_key: uuid::Uuid::new_v4().simple().to_string() }
    }

    pub(super) fn into_key(self) -> Option<String> {
        match self {
            Self::Loopback => None,
            Self::Network { admin_key } => Some(admin_key),
        }
    }

    /// Refuses an address that lets in more than was asked for, and a key that keeps nobody out.
    pub(super) fn check(&self, host: IpAddr) -> io::Result<()> {
        let refuse = |problem: String| Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        match self {
            Self::Loopback if !is_local(host) => refuse(format!(
                "{host} is no loopback address, and others could come in by it; --expose (Exposure::Network) allows that"
            )),
            Self::Network { admin_key } if admin_key.is_empty() => {
                refuse("the key of the admin API is empty; accepted: any text".to_owned())
            }
            Self::Loopback | Self::Network { .. } => Ok(()),
        }
    }
}

/// Whether only this machine can reach an address.
pub(crate) fn is_local(host: IpAddr) -> bool {
    host.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_lets_others_in_must_be_meant() {
        let check = |exposure: &Exposure, host: &str| exposure.check(host.parse().expect("an address"));
        for local in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(check(&Exposure::Loopback, local).is_ok(), "{local}");
        }
        for open in ["0.0.0.0", "::", "10.0.0.7", "::ffff:10.0.0.7"] {
            let refused = check(&Exposure::Loopback, open).expect_err(open).to_string();
            assert!(refused.starts_with(open) && refused.contains("--expose"), "{refused}");
            assert!(check(&Exposure::network(), open).is_ok(), "{open}");
        }
        assert!(check(&Exposure::Network { admin_key: String::new() }, "127.0.0.1").is_err());
        assert_ne!(Exposure::network(), Exposure::network());
    }
}
