//! The older protocol: `MetricData.member.1.Dimensions.member.2.Name=…` becomes a tree.

use std::collections::BTreeMap;

use serde_json::Value;

use super::protocol::unreadable;
use crate::ec2::Form;
use crate::world::AwsError;

/// No member of CloudWatch's lies deeper.
const DEEPEST: usize = 20;

#[derive(Debug)]
enum Node {
    Leaf(String),
    Branch(BTreeMap<String, Node>),
}

/// Reads a form as a tree. Everything in it is text; the reader of the tree knows better.
pub(super) fn read(form: &Form<'_>) -> Result<Value, AwsError> {
    let mut root = BTreeMap::new();
    for (name, value) in form.iter().filter(|(name, _)| !matches!(*name, "Action" | "Version")) {
        let path: Vec<&str> = name.split('.').collect();
        if path.len() > DEEPEST {
            return Err(unreadable("a parameter is nested too deep"));
        }
        insert(&mut root, &path, value)?;
    }
    Ok(Value::Object(root.into_iter().map(|(name, node)| (name, node.into_value())).collect()))
}

fn insert(branch: &mut BTreeMap<String, Node>, path: &[&str], value: &str) -> Result<(), AwsError> {
    match path {
        [] => Ok(()),
        [name] => {
            branch.insert((*name).to_owned(), Node::Leaf(value.to_owned()));
            Ok(())
        }
        [name, rest @ ..] => match branch.entry((*name).to_owned()).or_insert_with(|| Node::Branch(BTreeMap::new())) {
            Node::Branch(inner) => insert(inner, rest, value),
            Node::Leaf(_) => Err(unreadable(format_args!("{name} is both a value and a structure"))),
        },
    }
}

impl Node {
    fn into_value(self) -> Value {
        match self {
            Self::Leaf(text) => text.into(),
            Self::Branch(mut branch) => match branch.remove("member") {
                Some(Self::Branch(members)) if branch.is_empty() => {
                    let mut numbered: Vec<(u32, Self)> = members
                        .into_iter()
                        .filter_map(|(number, member)| Some((number.parse().ok()?, member)))
                        .collect();
                    numbered.sort_by_key(|(number, _)| *number);
                    Value::Array(numbered.into_iter().map(|(_, member)| member.into_value()).collect())
                }
                Some(member) => {
                    branch.insert("member".to_owned(), member);
                    Self::object(branch)
                }
                None => Self::object(branch),
            },
        }
    }

    fn object(branch: BTreeMap<String, Self>) -> Value {
        Value::Object(branch.into_iter().map(|(name, node)| (name, node.into_value())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_become_lists_in_the_order_of_their_numbers() {
        let body = "Action=X&Statistics.member.10=Sum&Statistics.member.2=Average&D.member.1.Name=a&D.member.1.Value=b";
        let form = Form::decode(body.as_bytes()).expect("a good form");
        assert_eq!(
            read(&form).expect("a tree"),
            serde_json::json!({"Statistics": ["Average", "Sum"], "D": [{"Name": "a", "Value": "b"}]})
        );
    }

    #[test]
    fn contradictions_and_abysses_are_refused() {
        for body in ["A=1&A.b=2".to_owned(), format!("{}x=1", "a.".repeat(50))] {
            let form = Form::decode(body.as_bytes()).expect("a good form");
            assert_eq!(read(&form).expect_err("refused").code, "SerializationException");
        }
    }
}
