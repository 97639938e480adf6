//! EC2's errors: a shape of their own, with `RequestID` where answers say `requestId`.

use super::xml::Xml;
use crate::world::AwsError;

pub(crate) fn encode(error: &AwsError, request_id: &str) -> Vec<u8> {
    let mut xml = Xml::document(512);
    xml.element("Response", |xml| {
        xml.element("Errors", |xml| {
            xml.element("Error", |xml| {
                xml.text("Code", &error.code);
                xml.text("Message", &error.message);
            });
        });
        xml.text("RequestID", request_id);
    });
    xml.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_bytes_of_ec2() {
        let text = encode(&AwsError::unknown_instances(&["i-0c71"]), "0fb85e6a");
        assert_eq!(
            String::from_utf8(text).expect("UTF-8"),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>InvalidInstanceID.NotFound</Code>\
             <Message>The instance ID 'i-0c71' does not exist</Message></Error></Errors>\
             <RequestID>0fb85e6a</RequestID></Response>"
        );
    }
}
