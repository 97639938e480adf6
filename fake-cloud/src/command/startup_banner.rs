//! Where everything is, as whoever starts a cloud is told.

use std::fmt::Write as _;

use crate::cloud::Endpoints;

/// A table for people, with lines to paste into a shell.
pub(super) fn table(endpoints: &Endpoints) -> String {
    let mut text = format!(
        "EC2, CloudWatch  {}\nadmin API        {}\netcd             {}\ncontrol plane    {}\n\
         CML              https://<public address of an instance>:{}\nCML's authority  {}\n\n",
        endpoints.aws_url,
        endpoints.admin_url,
        endpoints.etcd_endpoint,
        endpoints.control_plane_url,
        endpoints.cml_port,
        endpoints.cml_ca_file.display(),
    );
    if let Some(key) = &endpoints.admin_key {
        // Writing to a String never fails.
        let _ = writeln!(text, "Open to the network. Changes over the admin API need the header X-API-Key: {key}\n");
    }
    for (name, value) in endpoints.environment().as_object().into_iter().flatten() {
        let _ = writeln!(text, "export {name}={}", quoted(value.as_str().unwrap_or_default()));
    }
    text.push_str("\nCtrl-C stops it.\n");
    text
}

/// One line of JSON for programs.
pub(super) fn json(endpoints: &Endpoints) -> serde_json::Result<String> {
    let mut line = serde_json::to_value(endpoints)?;
    line["env"] = endpoints.environment();
    Ok(format!("{line}\n"))
}

/// A value as a shell takes it.
fn quoted(value: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-._:/".contains(letter);
    if value.chars().all(plain) { value.to_owned() } else { format!("'{}'", value.replace('\'', r"'\''")) }
}
