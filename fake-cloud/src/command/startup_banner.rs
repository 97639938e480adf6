//! Endpoints printed at startup, as a table or as JSON.

use std::fmt::Write as _;

use crate::cloud::Endpoints;

/// Table of endpoints, followed by `export` lines for a shell.
pub(super) fn table(endpoints: &Endpoints) -> String {
    let mut text = format!(
        "EC2, CloudWatch  {}\nadmin API        {}\netcd             {}\ncontrol plane    {}\n\
         CML              https://<public address of an instance>:{}\nCML CA file      {}\n\n",
        endpoints.aws_url,
        endpoints.admin_url,
        endpoints.etcd_endpoint,
        endpoints.control_plane_url,
        endpoints.cml_port,
        endpoints.cml_ca_file.display(),
    );
    if let Some(key) = &endpoints.admin_key {
        // Writing to a String never fails.
        let _ = writeln!(
            text,
            "Remote access is enabled. Changes over the admin API require the header X-API-Key: {key}\n"
        );
    }
    for (name, value) in endpoints.environment().as_object().into_iter().flatten() {
        let _ = writeln!(text, "export {name}={}", shell_quote(value.as_str().unwrap_or_default()));
    }
    text.push_str("\nPress Ctrl-C to stop.\n");
    text
}

/// Endpoints and environment variables as one line of JSON.
pub(super) fn json(endpoints: &Endpoints) -> serde_json::Result<String> {
    let mut line = serde_json::to_value(endpoints)?;
    line["env"] = endpoints.environment();
    Ok(format!("{line}\n"))
}

/// Quotes a value for a POSIX shell.
fn shell_quote(value: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-._:/".contains(letter);
    if value.chars().all(plain) { value.to_owned() } else { format!("'{}'", value.replace('\'', r"'\''")) }
}
