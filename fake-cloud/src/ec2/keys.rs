//! Key pairs. Private keys are returned once, and not kept.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rsa::{KeySize, PrivateDecryptingKey};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use super::described::Item;
use super::instance_xml::tag_set;
use super::{Request, Xml};
use crate::response::ResponseBody;
use crate::world::{AwsError, KeyPair, Tags, not_found};

/// First line of a public key in the format of RFC 4716.
const RFC4716_BEGIN: &str = "---- BEGIN SSH2 PUBLIC KEY ----";
/// Last line of such a key.
const RFC4716_END: &str = "---- END SSH2 PUBLIC KEY ----";

pub(super) fn describe(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let (names, ids) = (form.list("KeyName"), form.list("KeyPairId"));
    let shows_key = form.flag("IncludePublicKey")?;
    let keys: Vec<(KeyPair, Tags)> = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let own = region.resources.key_pairs.iter().filter(|key| key.owner == *request.account);
        Ok::<_, AwsError>(own.map(|key| (key.clone(), region.tags_of(&key.id).clone())).collect())
    })?;
    if let Some(unknown) = names.iter().find(|name| !keys.iter().any(|(key, _)| key.name == **name)) {
        return Err(unknown_name(unknown));
    }
    let selected = keys.iter().filter(|(key, _)| names.is_empty() || names.contains(&key.name));
    let items = selected.map(|(key, tags)| {
        Item::new(&key.id, |xml| {
            key_fields(xml, key);
            xml.text("keyType", &key.kind);
            xml.timestamp("createTime", key.created_at);
            if shows_key {
                xml.text("publicKey", &key.public_key);
            }
            tag_set(xml, tags);
        })
    });
    request.respond_items("DescribeKeyPairs", "keySet", items.collect(), &ids, not_found)
}

fn unknown_name(name: &str) -> AwsError {
    AwsError::new("InvalidKeyPair.NotFound", format!("The key pair '{name}' does not exist"))
}

fn key_fields(xml: &mut Xml, key: &KeyPair) {
    xml.text("keyPairId", &key.id);
    xml.text("keyName", &key.name);
    xml.text("keyFingerprint", &key.fingerprint);
}

/// A new key: the private key in PEM, the public key in the format of OpenSSH, and the fingerprint.
struct NewKey {
    private: String,
    public: String,
    fingerprint: String,
}

pub(super) fn create(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let kind = request.form.optional("KeyType").unwrap_or("rsa");
    // Outside the lock of the world, because a key takes time. A dry run makes none.
    let new = match request.form.intent()? {
        crate::world::Intent::Execute => generate(kind)?,
        crate::world::Intent::DryRun => {
            NewKey { private: String::new(), public: String::new(), fingerprint: String::new() }
        }
    };
    let (key, tags) = add(request, kind, new.public, new.fingerprint)?;
    Ok(request.respond("CreateKeyPair", 4096, |xml| {
        key_fields(xml, &key);
        xml.text("keyMaterial", &new.private);
        tag_set(xml, &tags);
    }))
}

pub(super) fn import(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let invalid = || AwsError::new("InvalidKey.Format", "Key is not in valid OpenSSH public key format");
    let material = STANDARD.decode(request.form.need("PublicKeyMaterial")?).map_err(|_| invalid())?;
    let public = String::from_utf8(material).map_err(|_| invalid())?;
    let (algorithm, blob) = public_key(&public).ok_or_else(invalid)?;
    let kind = if algorithm == "ssh-rsa" { "rsa" } else { "ed25519" };
    let fingerprint = STANDARD.encode(digest(&SHA256, &blob));
    let openssh = match public.trim() {
        text if text.starts_with(RFC4716_BEGIN) => format!("{algorithm} {}", STANDARD.encode(&blob)),
        text => text.to_owned(),
    };
    let (key, tags) = add(request, kind, openssh, fingerprint)?;
    Ok(request.respond("ImportKeyPair", 512, |xml| {
        key_fields(xml, &key);
        tag_set(xml, &tags);
    }))
}

/// Reads a public key in the format of OpenSSH or of RFC 4716: its algorithm, and its blob, which begins with that name.
fn public_key(text: &str) -> Option<(&'static str, Vec<u8>)> {
    let text = text.trim();
    let (named, encoded) = match text.strip_prefix(RFC4716_BEGIN) {
        Some(rest) => (None, without_headers(rest.trim().strip_suffix(RFC4716_END)?)),
        None => {
            let mut words = text.split_whitespace();
            (Some(words.next()?), words.next()?.to_owned())
        }
    };
    let blob = STANDARD.decode(encoded).ok()?;
    let algorithm = ["ssh-rsa", "ssh-ed25519"].into_iter().find(|name| {
        let length = (name.len() as u32).to_be_bytes();
        blob.strip_prefix(&length).is_some_and(|rest| rest.starts_with(name.as_bytes()))
    })?;
    named.is_none_or(|named| named == algorithm).then_some((algorithm, blob))
}

/// Joins the lines of a key in the format of RFC 4716 without its headers, which may continue on the next line.
fn without_headers(body: &str) -> String {
    let mut encoded = String::new();
    let mut is_header = false;
    for line in body.lines().map(str::trim) {
        let continues = is_header;
        is_header = (continues || line.contains(':')) && line.ends_with('\\');
        if !continues && !line.contains(':') {
            encoded.push_str(line);
        }
    }
    encoded
}

fn add(
    request: &Request<'_>,
    kind: &str,
    public_key: String,
    fingerprint: String,
) -> Result<(KeyPair, Tags), AwsError> {
    let name = request.form.need("KeyName")?;
    if name.len() > 255 || !name.is_ascii() {
        return Err(AwsError::invalid_value(name, "keyName"));
    }
    let tags = request.new_tags("key-pair")?;
    let intent = request.form.intent()?;
    request.world.with_ec2(|ec2, now| {
        let id = ec2.new_id("key");
        let region = ec2.region(request.region, now)?;
        let keys = &mut region.resources.key_pairs;
        if keys.iter().any(|key| key.name == name && key.owner == *request.account) {
            let message = format!("The keypair '{name}' already exists.");
            return Err(AwsError::new("InvalidKeyPair.Duplicate", message));
        }
        intent.proceed()?;
        let key = KeyPair {
            id,
            name: name.to_owned(),
            kind: kind.to_owned(),
            fingerprint,
            public_key,
            created_at: now,
            owner: Arc::clone(request.account),
        };
        keys.push(key.clone());
        region.put_tags(&key.id, &tags);
        Ok((key, tags.into_iter().collect()))
    })
}

pub(super) fn delete(request: &Request<'_>) -> Result<ResponseBody, AwsError> {
    let form = request.form;
    let (name, id) = (form.optional("KeyName"), form.optional("KeyPairId"));
    if name.is_none() && id.is_none() {
        return Err(AwsError::missing("KeyName or KeyPairId"));
    }
    let intent = form.intent()?;
    let deleted = request.world.with_ec2(|ec2, now| {
        let region = ec2.region(request.region, now)?;
        let position = region.resources.key_pairs.iter().position(|key| {
            key.owner == *request.account
                && name.is_none_or(|name| key.name == name)
                && id.is_none_or(|id| key.id == id)
        });
        intent.proceed()?;
        // Deleting a key pair that does not exist succeeds, as in EC2.
        let deleted = position.map(|position| region.resources.key_pairs.remove(position));
        if let Some(key) = &deleted {
            region.resources.tags.remove(&key.id);
        }
        Ok::<_, AwsError>(deleted)
    })?;
    Ok(request.respond("DeleteKeyPair", 128, |xml| {
        xml.raw("<return>true</return>");
        if let Some(key) = &deleted {
            xml.text("keyPairId", &key.id);
        }
    }))
}

fn generate(kind: &str) -> Result<NewKey, AwsError> {
    let failed = |_| AwsError::from_code("InternalError");
    let (der, blob) = if kind == "ed25519" {
        let key = Ed25519KeyPair::generate().map_err(failed)?;
        let der = key.to_pkcs8().map_err(failed)?.as_ref().to_vec();
        (der, ssh_blob(&[b"ssh-ed25519", key.public_key().as_ref()]))
    } else {
        let key = PrivateDecryptingKey::generate(KeySize::Rsa2048).map_err(failed)?;
        let der: Vec<u8> =
            AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(&key).map_err(failed)?.as_ref().to_vec();
        let pair = aws_lc_rs::rsa::KeyPair::from_pkcs8(&der).map_err(|_| AwsError::from_code("InternalError"))?;
        let public = pair.public_key();
        let (exponent, modulus) = (public.exponent(), public.modulus());
        let number = |bytes: &[u8]| [&[0][..], bytes].concat();
        (
            der,
            ssh_blob(&[
                b"ssh-rsa",
                exponent.big_endian_without_leading_zero(),
                &number(modulus.big_endian_without_leading_zero()),
            ]),
        )
    };
    // EC2 hashes the private key of RSA with SHA-1, and the public key of ED25519 with SHA-256.
    let fingerprint = if kind == "ed25519" {
        STANDARD_NO_PAD.encode(digest(&SHA256, &blob))
    } else {
        let bytes: Vec<String> =
            digest(&SHA1_FOR_LEGACY_USE_ONLY, &der).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        bytes.join(":")
    };
    let algorithm = if kind == "ed25519" { "ssh-ed25519" } else { "ssh-rsa" };
    Ok(NewKey {
        private: pem("PRIVATE KEY", &der),
        public: format!("{algorithm} {}", STANDARD.encode(&blob)),
        fingerprint,
    })
}

/// Joins the parts of a public key, each after its length.
fn ssh_blob(parts: &[&[u8]]) -> Vec<u8> {
    let mut blob = Vec::new();
    for part in parts {
        blob.extend_from_slice(&(part.len() as u32).to_be_bytes());
        blob.extend_from_slice(part);
    }
    blob
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = (0..text.len()).step_by(64).filter_map(|at| text.get(at..text.len().min(at + 64))).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_keys_are_read_in_both_formats() {
        let blob = ssh_blob(&[b"ssh-ed25519", &[7; 32]]);
        let encoded = STANDARD.encode(&blob);
        let (first, second) = encoded.split_at(30);
        let headers = "Comment: \"a key\"\nx-long: goes on \\\nover here";
        let rfc4716 = format!("{RFC4716_BEGIN}\n{headers}\n{first}\n{second}\n{RFC4716_END}\n");
        for text in [format!("ssh-ed25519 {encoded} me@here"), rfc4716] {
            assert_eq!(public_key(&text), Some(("ssh-ed25519", blob.clone())), "{text}");
        }
        for bad in ["", "ssh-ed25519", &format!("ssh-rsa {encoded}"), &format!("{RFC4716_BEGIN}\n{encoded}")] {
            assert_eq!(public_key(bad), None, "{bad}");
        }
    }
}
