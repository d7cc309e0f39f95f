//! The account at the CA: made once, then the one in the state directory.

use crate::Authority;
use crate::order::Failure;
use crate::state;
use crate::transport::Transport;
use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use instant_acme::{Account, AccountCredentials, ExternalAccountKey, NewAccount};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The file of the account.
#[derive(Serialize, Deserialize)]
struct KeptAccount {
    /// The contacts that the CA was told.
    contact: Vec<String>,
    /// Its URL and its key.
    credentials: AccountCredentials,
}

/// The account, and whether it was made just now.
///
/// `of_authority` is its directory. Where there is none in it, one is made at the CA; one that is there and cannot be read is
/// an error, so that no second one is made beside it.
pub(crate) async fn open(
    authority: &Authority,
    of_authority: &Path,
    transport: &Transport,
) -> Result<(Account, bool), Failure> {
    let file = of_authority.join("account.json");
    let about = |error: anyhow::Error| Failure::of_authority("the account", &error, transport);
    match state::read_json::<KeptAccount>(&file).map_err(about)? {
        Some(kept) => {
            let account = restored(authority, &file, kept, transport).await;
            account.map(|account| (account, false)).map_err(about)
        }
        None => made(authority, &file, transport).await.map(|account| (account, true)).map_err(about),
    }
}

/// The account that is kept, if there is one.
pub(crate) async fn existing(
    authority: &Authority,
    of_authority: &Path,
    transport: &Transport,
) -> Result<Option<Account>> {
    let file = of_authority.join("account.json");
    let Some(kept) = state::read_json::<KeptAccount>(&file)? else { return Ok(None) };
    restored(authority, &file, kept, transport).await.map(Some)
}

/// Puts the account that is kept aside, for people to look at: the next order makes another one.
pub(crate) fn set_aside(of_authority: &Path) -> Result<()> {
    let (file, aside) = (of_authority.join("account.json"), of_authority.join("account.json.unknown"));
    std::fs::rename(&file, &aside).with_context(|| format!("cannot rename {} to {}", file.display(), aside.display()))
}

/// The URL of the account that is kept.
pub(crate) fn url(of_authority: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct Credentials {
        id: String,
    }
    #[derive(Deserialize)]
    struct Kept {
        credentials: Credentials,
    }
    let kept: Kept = state::read_json(&of_authority.join("account.json")).ok()??;
    Some(kept.credentials.id)
}

async fn restored(authority: &Authority, file: &Path, kept: KeptAccount, transport: &Transport) -> Result<Account> {
    // Its key is needed twice, and has no copy.
    let again: AccountCredentials = serde_json::from_value(serde_json::to_value(&kept.credentials)?)?;
    let account = Account::builder_with_http(Box::new(transport.clone())).from_credentials(again).await?;
    if kept.contact != authority.contact {
        let contact: Vec<&str> = authority.contact.iter().map(String::as_str).collect();
        account.update_contacts(&contact).await.context("the CA does not take `contact`")?;
        state::write_json(file, &KeptAccount { contact: authority.contact.clone(), ..kept })?;
    }
    Ok(account)
}

async fn made(authority: &Authority, file: &Path, transport: &Transport) -> Result<Account> {
    let contact: Vec<&str> = authority.contact.iter().map(String::as_str).collect();
    // The configuration is refused without `terms_agreed = true`.
    let wanted = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
    let external = authority.external_account.as_ref().map(|(id, file)| external_key(id, file)).transpose()?;
    let builder = Account::builder_with_http(Box::new(transport.clone()));
    let (account, credentials) = builder.create(&wanted, authority.directory.clone(), external.as_ref()).await?;
    state::write_json(file, &KeptAccount { contact: authority.contact.clone(), credentials })?;
    Ok(account)
}

fn external_key(id: &str, file: &Path) -> Result<ExternalAccountKey> {
    let about = || format!("cannot read the external account's key {}", file.display());
    let text = std::fs::read_to_string(file).with_context(about)?;
    let key = BASE64_URL_SAFE_NO_PAD.decode(text.trim().trim_end_matches('='));
    let key = key.with_context(|| format!("{} has no key in base64url", file.display()))?;
    Ok(ExternalAccountKey::new(id.to_owned(), &key))
}
