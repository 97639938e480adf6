//! The web console of the controller and of the fake cloud: pages, scripts and styles, embedded in the program.
//!
//! The files need no build step and load nothing from another host. A server serves them below one path, next to a
//! `config.json` of its own that names its stream and its API.
//!
//! ```
//! let page = lcm_console::asset("").expect("the page");
//! assert_eq!(page.content_type, "text/html; charset=utf-8");
//! assert!(lcm_console::asset("console.css").is_some());
//! assert!(lcm_console::asset("../Cargo.toml").is_none());
//! ```

mod origin;

pub use origin::{is_cross_origin, is_local_host};

/// Value of the header `Content-Security-Policy` for every file: scripts, styles and requests of the same origin only, and
/// nothing inline.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every [`FileResponse`] beside its content type and its tag. A browser asks again for a file that it has, so that a page
/// never mixes files of two versions.
const HEADERS: [(&str, &str); 5] = [
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-cache"),
];

/// A file of the console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asset {
    /// Path below the path of the console.
    pub path: &'static str,
    /// Value of the header `Content-Type`.
    pub content_type: &'static str,
    /// Content.
    pub bytes: &'static [u8],
}

impl Asset {
    /// Returns the response to a request for the file. `known_tag` is the header `If-None-Match` of the request: if it is
    /// the tag of the file, the response has no body.
    ///
    /// ```
    /// let page = lcm_console::asset("").expect("the page");
    /// let response = page.response(None);
    /// assert_eq!((response.status, response.body), (200, page.bytes));
    /// let tag = response.headers.iter().find(|(name, _)| *name == "etag").expect("a tag").1.clone();
    /// assert_eq!(page.response(Some(tag.as_bytes())).status, 304);
    /// ```
    pub fn response(&self, known_tag: Option<&[u8]>) -> FileResponse {
        let tag = self.etag();
        let is_known = known_tag == Some(tag.as_bytes());
        let [policy, sniffing, referrer, opener, cache] = HEADERS.map(|(name, value)| (name, value.to_owned()));
        let content_type = ("content-type", self.content_type.to_owned());
        FileResponse {
            status: if is_known { 304 } else { 200 },
            headers: [policy, sniffing, referrer, opener, cache, content_type, ("etag", tag)],
            body: if is_known { &[] } else { self.bytes },
        }
    }

    /// Returns the value of the header `ETag`, which differs for other content.
    fn etag(&self) -> String {
        // FNV-1a: the tag tells versions apart and protects nothing.
        let hash = self.bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        format!("\"{hash:016x}\"")
    }
}

/// The response to a request for a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileResponse {
    /// Status code: 200, or 304 if the client has the file.
    pub status: u16,
    /// Names and values of the headers.
    pub headers: [(&'static str, String); 7],
    /// Body.
    pub body: &'static [u8],
}

/// Returns a file by its path below the path of the console; the empty path is the page.
pub fn asset(path: &str) -> Option<&'static Asset> {
    let path = if path.is_empty() { "index.html" } else { path };
    ASSETS.iter().find(|asset| asset.path == path)
}

macro_rules! assets {
    ($($path:literal: $content_type:expr,)*) => {
        /// All files of the console.
        pub const ASSETS: &[Asset] = &[$(
            Asset { path: $path, content_type: $content_type, bytes: include_bytes!(concat!("../assets/", $path)) },
        )*];
    };
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

assets! {
    "index.html": HTML,
    "console.css": STYLE,
    "icon.svg": IMAGE,
    "app.js": SCRIPT,
    "dom.js": SCRIPT,
    "palette.js": SCRIPT,
    "format.js": SCRIPT,
    "store.js": SCRIPT,
    "api.js": SCRIPT,
    "dialogs.js": SCRIPT,
    "list.js": SCRIPT,
    "clock.js": SCRIPT,
    "fleet.js": SCRIPT,
    "worker.js": SCRIPT,
    "instances.js": SCRIPT,
    "requests.js": SCRIPT,
    "faults.js": SCRIPT,
    "etcd.js": SCRIPT,
    "cml.js": SCRIPT,
    "scenarios.js": SCRIPT,
    "queue.js": SCRIPT,
    "discovery.js": SCRIPT,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(asset: &Asset) -> &'static str {
        std::str::from_utf8(asset.bytes).expect("UTF-8")
    }

    #[test]
    fn etags_differ_between_files() {
        let tags: std::collections::HashSet<String> = ASSETS.iter().map(Asset::etag).collect();
        assert_eq!(tags.len(), ASSETS.len());
        assert!(tags.iter().all(|tag| tag.len() == 18 && tag.starts_with('"')));
    }

    #[test]
    fn page_loads_files_of_the_console_only() {
        for asset in ASSETS {
            let text = text(asset);
            let named = text.match_indices("./").map(|(at, _)| &text[at + 2..]);
            for rest in named.filter(|_| asset.content_type == SCRIPT || asset.content_type == HTML) {
                let end = rest.find(['"', '\'', '`']).unwrap_or(rest.len());
                let path = &rest[..end];
                let is_known = ASSETS.iter().any(|other| other.path == path) || path == "config.json";
                assert!(is_known, "{} names {path:?}, which is not a file of the console", asset.path);
            }
            // The namespace of SVG is a name, and the page of reason codes is a link: the page requests neither.
            let foreign = text.replace("http://www.w3.org/2000/svg", "");
            let foreign = foreign.replace("https://lcm-project.github.io/lcm/reference/reasons/#", "");
            assert!(!foreign.contains("http://") && !foreign.contains("https://"), "{} names a URL", asset.path);
        }
    }

    #[test]
    fn scripts_insert_text_only() {
        let forbidden = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "srcdoc",
            "DOMParser",
        ];
        for asset in ASSETS.iter().filter(|asset| asset.content_type == SCRIPT) {
            let found: Vec<_> = forbidden.iter().filter(|word| text(asset).contains(**word)).collect();
            assert!(found.is_empty(), "{} uses {found:?}", asset.path);
        }
    }

    #[test]
    fn page_has_no_inline_script_or_style() {
        let page = text(asset("").expect("the page"));
        let is_handler = |word: &str| word.starts_with("on") && word.contains('=');
        assert!(!page.contains("<style") && !page.contains("style="), "an inline style");
        assert!(!page.split_whitespace().any(is_handler), "an inline handler");
        assert_eq!(page.matches("<script").count(), page.matches("<script type=\"module\" src=").count());
    }
}
