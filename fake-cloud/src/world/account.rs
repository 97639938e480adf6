//! AWS accounts: each owns its instances, images, subnets and security groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::catalog::ACCOUNT;

/// An account and an access key of it.
///
/// ```
/// use fake_cloud::world::Account;
///
/// let account = Account::new("999999999999", "AKIAOTHER")?;
/// assert_eq!(account.id(), "999999999999");
/// assert!(Account::new("blue", "AKIAOTHER").is_err());
/// # Ok::<(), fake_cloud::world::AccountError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Account {
    id: Arc<str>,
    access_key: String,
}

impl Account {
    /// Creates an account with an access key.
    ///
    /// # Errors
    /// The id does not have 12 digits, or the access key is empty or has other characters than letters and digits.
    pub fn new(id: &str, access_key: &str) -> Result<Self, AccountError> {
        if id.len() != 12 || !id.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(AccountError::Id(id.to_owned()));
        }
        if access_key.is_empty() || !access_key.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(AccountError::AccessKey(access_key.to_owned()));
        }
        Ok(Self { id: id.into(), access_key: access_key.to_owned() })
    }

    /// Returns the account id, which has 12 digits.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the access key id that signs requests of the account.
    pub fn access_key(&self) -> &str {
        &self.access_key
    }
}

/// Error of an invalid account.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccountError {
    /// The account id is invalid.
    #[error("invalid account id '{0}': expected 12 digits")]
    Id(String),
    /// The access key id is invalid.
    #[error("invalid access key '{0}': expected letters and digits")]
    AccessKey(String),
}

/// The account of every access key. Unknown keys belong to the default account.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Accounts {
    default: Arc<str>,
    by_key: BTreeMap<String, Arc<str>>,
}

impl Accounts {
    pub(super) fn new(accounts: &[Account]) -> Self {
        let mut all = Self { default: ACCOUNT.into(), by_key: BTreeMap::new() };
        accounts.iter().for_each(|account| all.add(account));
        all
    }

    /// Adds an account. A known access key moves to the account.
    pub(super) fn add(&mut self, account: &Account) {
        self.by_key.insert(account.access_key.clone(), Arc::clone(&account.id));
    }

    pub(super) fn owner_of(&self, access_key: &str) -> Arc<str> {
        Arc::clone(self.by_key.get(access_key).unwrap_or(&self.default))
    }

    pub(super) fn list(&self) -> Vec<Account> {
        let account = |(key, id): (&String, &Arc<str>)| Account { id: Arc::clone(id), access_key: key.clone() };
        self.by_key.iter().map(account).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_access_keys_belong_to_the_default_account() {
        let other = Account::new("999999999999", "OTHER").expect("an account");
        let accounts = Accounts::new(&[other]);
        assert_eq!(&*accounts.owner_of("OTHER"), "999999999999");
        assert_eq!(&*accounts.owner_of("fake"), ACCOUNT);
    }

    #[test]
    fn invalid_accounts_are_named_in_the_error() {
        let error = |id, key| Account::new(id, key).expect_err("rejected").to_string();
        assert_eq!(error("12", "KEY"), "invalid account id '12': expected 12 digits");
        assert_eq!(error("999999999999", "a/b"), "invalid access key 'a/b': expected letters and digits");
    }
}
