//! Pagination of EC2 lists.

use super::error::AwsError;
use super::view::PageLimit;

/// Requested page of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageRequest {
    /// Maximum number of items; `None` for no limit.
    pub limit: Option<usize>,
    /// Position of the first item.
    pub from: u64,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// Items of the page.
    pub items: Vec<T>,
    /// Token for the next page; `None` on the last page.
    pub next_token: Option<String>,
}

const TOKEN_PREFIX: &str = "fc1-";

impl PageRequest {
    /// Parses `MaxResults` and `NextToken`.
    ///
    /// # Errors
    /// `InvalidParameterValue` for a size outside 5..=1000, `InvalidNextToken` for a malformed token.
    pub fn parse(max_results: Option<&str>, next_token: Option<&str>) -> Result<Self, AwsError> {
        let limit = max_results.map(parse_limit).transpose()?;
        let from = next_token.filter(|token| !token.is_empty()).map(parse_token).transpose()?.unwrap_or(0);
        Ok(Self { limit, from })
    }

    pub(crate) fn cut(self, cut: PageLimit) -> Self {
        match cut {
            PageLimit::AsRequested => self,
            PageLimit::Empty => Self { limit: Some(0), ..self },
            PageLimit::AtMost(most) => Self { limit: Some(self.limit.map_or(most, |limit| limit.min(most))), ..self },
        }
    }
}

impl<T> Page<T> {
    /// Collects a page from items with their positions. The iterator must start at [`PageRequest::from`].
    pub fn collect(request: PageRequest, listing: impl Iterator<Item = (u64, T)>) -> Self {
        let limit = request.limit.unwrap_or(usize::MAX);
        let mut items = Vec::new();
        for (place, item) in listing {
            if items.len() == limit {
                return Self { items, next_token: Some(token(place)) };
            }
            items.push(item);
        }
        Self { items, next_token: None }
    }
}

fn parse_limit(text: &str) -> Result<usize, AwsError> {
    let limit = text.parse::<usize>().map_err(|_| AwsError::invalid_value(text, "maxResults"))?;
    let wrong = |hint: &str| {
        let message = format!("Value ( {limit} ) for parameter maxResults is invalid. {hint}");
        Err(AwsError::new("InvalidParameterValue", message))
    };
    match limit {
        0..5 => wrong("Expecting a value greater than 5."),
        5..=1000 => Ok(limit),
        1001.. => wrong("Expecting a value less than 1000."),
    }
}

fn token(place: u64) -> String {
    format!("{TOKEN_PREFIX}{place:016x}")
}

fn parse_token(text: &str) -> Result<u64, AwsError> {
    text.strip_prefix(TOKEN_PREFIX)
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| AwsError::new("InvalidNextToken", "The specified NextToken is not valid."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_no_gap_and_no_duplicate() {
        let all: Vec<u64> = (0..23).map(|number| number * 3).collect();
        let (mut collected, mut token) = (Vec::new(), None);
        loop {
            let request = PageRequest::parse(Some("5"), token.as_deref()).expect("a good request");
            let listing = all.iter().filter(|place| **place >= request.from).map(|place| (*place, *place));
            let page = Page::collect(request, listing);
            collected.extend(page.items);
            token = page.next_token;
            if token.is_none() {
                break;
            }
        }
        assert_eq!(collected, all);
    }

    #[test]
    fn empty_page_has_a_next_token() {
        let request = PageRequest::default().cut(PageLimit::Empty);
        let page = Page::collect(request, [(7, 'a')].into_iter());
        assert!(page.items.is_empty());
        let again = PageRequest::parse(None, page.next_token.as_deref()).expect("a valid token");
        assert_eq!(again.from, 7);
    }

    #[test]
    fn invalid_sizes_and_tokens_are_rejected() {
        for (size, token, code) in [
            (Some("4"), None, "InvalidParameterValue"),
            (Some("1001"), None, "InvalidParameterValue"),
            (Some("many"), None, "InvalidParameterValue"),
            (None, Some("banana"), "InvalidNextToken"),
        ] {
            assert_eq!(PageRequest::parse(size, token).expect_err("rejected").code, code);
        }
    }
}
