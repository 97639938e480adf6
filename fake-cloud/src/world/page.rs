//! Pages: how many, and where the next one begins.

use super::error::AwsError;
use super::view::PageCut;

/// The part of a listing a caller asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageRequest {
    /// How many at most; none for all.
    pub limit: Option<usize>,
    /// Where to go on: the first place that was not shown yet.
    pub from: u64,
}

/// A part of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Says where to go on, if there is more.
    pub next_token: Option<String>,
}

const TOKEN_MARK: &str = "fc1-";

impl PageRequest {
    /// Reads what the caller sent.
    ///
    /// # Errors
    /// `InvalidParameterValue` for a size outside 5..=1000, `InvalidNextToken` for a token we never gave.
    pub fn parse(max_results: Option<&str>, next_token: Option<&str>) -> Result<Self, AwsError> {
        let limit = max_results.map(parse_limit).transpose()?;
        let from = next_token.filter(|token| !token.is_empty()).map(parse_token).transpose()?.unwrap_or(0);
        Ok(Self { limit, from })
    }

    pub(super) fn cut(self, cut: PageCut) -> Self {
        match cut {
            PageCut::AsAsked => self,
            PageCut::Empty => Self { limit: Some(0), ..self },
            PageCut::AtMost(most) => Self { limit: Some(self.limit.map_or(most, |limit| limit.min(most))), ..self },
        }
    }
}

impl<T> Page<T> {
    /// Takes a page off a sequence of places and items that begins where the request says.
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
    format!("{TOKEN_MARK}{place:016x}")
}

fn parse_token(text: &str) -> Result<u64, AwsError> {
    text.strip_prefix(TOKEN_MARK)
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| AwsError::new("InvalidNextToken", "The specified NextToken is not valid."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_on_each_other_without_gap_or_repetition() {
        let all: Vec<u64> = (0..23).map(|number| number * 3).collect();
        let (mut seen, mut token) = (Vec::new(), None);
        loop {
            let request = PageRequest::parse(Some("5"), token.as_deref()).expect("a good request");
            let listing = all.iter().filter(|place| **place >= request.from).map(|place| (*place, *place));
            let page = Page::collect(request, listing);
            seen.extend(page.items);
            token = page.next_token;
            if token.is_none() {
                break;
            }
        }
        assert_eq!(seen, all);
    }

    #[test]
    fn an_empty_page_still_says_where_to_go_on() {
        let request = PageRequest::default().cut(PageCut::Empty);
        let page = Page::collect(request, [(7, 'a')].into_iter());
        assert!(page.items.is_empty());
        let again = PageRequest::parse(None, page.next_token.as_deref()).expect("our own token");
        assert_eq!(again.from, 7);
    }

    #[test]
    fn sizes_and_tokens_that_are_none_are_refused() {
        for (size, token, code) in [
            (Some("4"), None, "InvalidParameterValue"),
            (Some("1001"), None, "InvalidParameterValue"),
            (Some("many"), None, "InvalidParameterValue"),
            (None, Some("banana"), "InvalidNextToken"),
        ] {
            assert_eq!(PageRequest::parse(size, token).expect_err("refused").code, code);
        }
    }
}
