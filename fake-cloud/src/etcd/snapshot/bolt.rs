//! Writes a file in the format of bbolt, the database of real etcd: tables of rows, each a tree of pages.

use std::collections::BTreeMap;

/// The rows of a table, in key order.
pub(super) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

const PAGE: usize = 4096;
const PAGE_HEADER: usize = 16;
/// Size of the entry that describes a row or a child, before its bytes.
const ENTRY: usize = 16;

const MAGIC: u32 = 0xED0C_DAED;
const FORMAT_VERSION: u32 = 2;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREE_LIST: u16 = 0x10;
/// Marks a row of the root as a table.
const TABLE: u32 = 0x01;

/// Numbers of the pages that every file begins with: two copies of the meta page, and the list of free pages.
const FREE_LIST_PAGE: u64 = 2;
const FIRST_PAGE: u64 = 3;

/// Writes a file with these tables.
pub(super) fn write(tables: Vec<(&'static str, Rows)>) -> Vec<u8> {
    let mut pages = Pages { bytes: Vec::new(), next: FIRST_PAGE };
    let mut root = Vec::new();
    for (name, rows) in tables {
        let rows = rows.into_iter().map(|(key, value)| Row { flags: 0, key, value }).collect();
        // The value of a table's row: the page of its root, and a sequence number that etcd does not use.
        let value = [pages.tree(rows).to_le_bytes(), 0_u64.to_le_bytes()].concat();
        root.push(Row { flags: TABLE, key: name.as_bytes().to_vec(), value });
    }
    root.sort_by(|a, b| a.key.cmp(&b.key));
    let root = pages.tree(root);
    let mut file = meta(0, root, pages.next);
    file.extend(meta(1, root, pages.next));
    file.extend(page(FREE_LIST_PAGE, FREE_LIST, 0, 0, &[]));
    file.extend(pages.bytes);
    file
}

struct Row {
    flags: u32,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Row {
    fn size(&self) -> usize {
        ENTRY + self.key.len() + self.value.len()
    }
}

struct Child {
    key: Vec<u8>,
    page: u64,
}

/// The pages after the first ones.
struct Pages {
    bytes: Vec<u8>,
    next: u64,
}

impl Pages {
    /// Writes rows as a tree and returns the number of its root page.
    fn tree(&mut self, rows: Vec<Row>) -> u64 {
        let leaves = split(rows, Row::size);
        let mut children: Vec<_> = leaves.iter().map(|rows| self.leaf(rows)).collect();
        while children.len() > 1 {
            let branches = split(children, |child| ENTRY + child.key.len());
            children = branches.iter().map(|children| self.branch(children)).collect();
        }
        children.first().map_or(0, |root| root.page)
    }

    fn leaf(&mut self, rows: &[Row]) -> Child {
        let (mut entries, mut data) = (Vec::new(), Vec::new());
        for (index, row) in rows.iter().enumerate() {
            // Counted from the entry itself.
            let offset = (rows.len() - index) * ENTRY + data.len();
            for number in [row.flags, u32_of(offset), u32_of(row.key.len()), u32_of(row.value.len())] {
                entries.extend(number.to_le_bytes());
            }
            data.extend_from_slice(&row.key);
            data.extend_from_slice(&row.value);
        }
        let key = rows.first().map(|row| row.key.clone()).unwrap_or_default();
        Child { key, page: self.push(LEAF, rows.len(), &[entries, data].concat()) }
    }

    fn branch(&mut self, children: &[Child]) -> Child {
        let (mut entries, mut data) = (Vec::new(), Vec::new());
        for (index, child) in children.iter().enumerate() {
            let offset = (children.len() - index) * ENTRY + data.len();
            entries.extend(u32_of(offset).to_le_bytes());
            entries.extend(u32_of(child.key.len()).to_le_bytes());
            entries.extend(child.page.to_le_bytes());
            data.extend_from_slice(&child.key);
        }
        let key = children.first().map(|child| child.key.clone()).unwrap_or_default();
        Child { key, page: self.push(BRANCH, children.len(), &[entries, data].concat()) }
    }

    /// Appends a page, with as many overflow pages as its content needs, and returns its number.
    fn push(&mut self, kind: u16, count: usize, content: &[u8]) -> u64 {
        let number = self.next;
        let overflow = (PAGE_HEADER + content.len()).div_ceil(PAGE) - 1;
        self.bytes.extend(page(number, kind, count, overflow, content));
        self.next += 1 + u64::from(u32_of(overflow));
        number
    }
}

/// Splits items into groups that fit into a page each, at least one. An item that does not fit has a group of its own.
fn split<T>(items: Vec<T>, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let (mut groups, mut group, mut used) = (Vec::new(), Vec::new(), PAGE_HEADER);
    for item in items {
        let added = size(&item);
        if used + added > PAGE && !group.is_empty() {
            groups.push(std::mem::take(&mut group));
            used = PAGE_HEADER;
        }
        used += added;
        group.push(item);
    }
    groups.push(group);
    groups
}

fn page(number: u64, kind: u16, count: usize, overflow: usize, content: &[u8]) -> Vec<u8> {
    let mut page = Vec::with_capacity((overflow + 1) * PAGE);
    page.extend(number.to_le_bytes());
    page.extend(kind.to_le_bytes());
    page.extend(u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes());
    page.extend(u32_of(overflow).to_le_bytes());
    page.extend_from_slice(content);
    page.resize((overflow + 1) * PAGE, 0);
    page
}

/// A meta page. Of the two, the one with the higher transaction, which is its number here, is valid.
fn meta(number: u64, root: u64, page_count: u64) -> Vec<u8> {
    let mut content = Vec::new();
    content.extend(MAGIC.to_le_bytes());
    content.extend(FORMAT_VERSION.to_le_bytes());
    content.extend(u32_of(PAGE).to_le_bytes());
    content.extend(0_u32.to_le_bytes());
    for field in [root, 0, FREE_LIST_PAGE, page_count, number] {
        content.extend(field.to_le_bytes());
    }
    content.extend(fnv_1a(&content).to_le_bytes());
    page(number, META, 0, 0, &content)
}

/// The checksum of a meta page.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn u32_of(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
