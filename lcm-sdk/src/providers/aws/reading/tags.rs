//! The tags of an answer, one after the other. What EC2 never sends inside one is strange, and left to the client.

use memchr::{memchr, memchr_iter};

#[derive(Clone, Copy)]
pub(super) struct Tag<'a> {
    pub(super) begin: usize,
    pub(super) end: usize,
    pub(super) kind: Kind,
    pub(super) name: &'a [u8],
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Opens,
    Closes,
    IsEmpty,
    /// A declaration, a comment, or quoted text.
    Strange,
}

impl Tag<'_> {
    /// Whether the name is all there is to it: neither a namespace nor an attribute.
    pub(super) fn is_plain(&self) -> bool {
        self.name.iter().all(u8::is_ascii_alphanumeric)
    }
}

/// A place in an answer without attributes.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    pub(super) answer: &'a [u8],
    pub(super) place: usize,
}

impl<'a> Cursor<'a> {
    /// Whether anything between a place and here may be an attribute: those can hold what looks like a tag. It is looked
    /// for in one go, because most of the answer is skipped and should cost no more than that.
    pub(super) fn has_attributes_since(&self, begin: usize) -> bool {
        let passed = &self.answer[begin..self.place];
        let is_set = |sign: usize| matches!(passed[sign + 1..].trim_ascii_start().first(), Some(b'"' | b'\''));
        memchr_iter(b'=', passed).any(is_set)
    }

    /// The next tag, whatever stands before it.
    pub(super) fn next(&mut self) -> Option<Tag<'a>> {
        let begin = self.place + memchr(b'<', self.answer.get(self.place..)?)?;
        let end = begin + memchr(b'>', &self.answer[begin..])?;
        let (kind, name) = match &self.answer[begin + 1..end] {
            [b'/', name @ ..] => (Kind::Closes, name),
            [b'!' | b'?', name @ ..] => (Kind::Strange, name),
            [name @ .., b'/'] => (Kind::IsEmpty, name),
            name => (Kind::Opens, name),
        };
        self.place = end + 1;
        Some(Tag { begin, end: end + 1, kind, name })
    }

    /// Goes to the end of an element that was opened; `None` if there is none, or something strange before it.
    pub(super) fn skip(&mut self, opened: Tag<'_>) -> Option<()> {
        let mut depth = usize::from(opened.kind == Kind::Opens);
        while depth > 0 {
            let inside = self.place + memchr(b'<', &self.answer[self.place..])? + 1;
            let end = inside + memchr(b'>', &self.answer[inside..])?;
            match self.answer[inside] {
                b'/' => depth -= 1,
                b'!' | b'?' => return None,
                _ => depth += usize::from(self.answer[end - 1] != b'/'),
            }
            self.place = end + 1;
        }
        Some(())
    }

    /// The text of an element that was opened and holds nothing else; `None` if there is anything in it that means
    /// something else than it says.
    pub(super) fn text(&mut self, opened: Tag<'_>) -> Option<&'a str> {
        if opened.kind == Kind::IsEmpty {
            return Some("");
        }
        let closing = self.next()?;
        let text = &self.answer[opened.end..closing.begin];
        let is_plain = closing.kind == Kind::Closes && closing.name == opened.name && text.iter().all(is_plain);
        // The client takes blanks alone now for a text and now for nothing.
        let is_blank = text.first() == Some(&b' ') && text.trim_ascii().is_empty();
        std::str::from_utf8(text).ok().filter(|_| is_plain && !is_blank)
    }
}

/// Whether a byte of a text says what it is: it begins no entity and no character that XML does not have.
fn is_plain(byte: &u8) -> bool {
    matches!(byte, 0x20..=0xee | 0xf0..) && *byte != b'&'
}
