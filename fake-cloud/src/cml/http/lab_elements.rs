//! Endpoints of the nodes, interfaces and links of labs.

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde_json::{Value, json};

use super::super::error::CmlError;
use super::super::fields::required;
use super::super::labs::{Action, Configurations, Details, Lab, NewNode, Operational};
use super::super::links::parse_mac_address;
use super::super::server::CmlServer;
use super::super::users::Permission;
use super::{ApiRequest, DELETE, Endpoint, EndpointResult, GET, PATCH, POST, PUT, json, no_content};

const EDIT: Permission = Permission::Edit;
const EXEC: Permission = Permission::Exec;
const VIEW: Permission = Permission::View;

/// Header of a capture file without packets: magic number, version 2.4, and Ethernet frames of up to 64 KiB.
const EMPTY_PCAP: [u8; 24] = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0];

impl ApiRequest {
    pub(super) fn operational(&self) -> Operational {
        if self.query_flag("operational") { Operational::Shown } else { Operational::Hidden }
    }

    /// `exclude_configurations=false` asks for all files of a node, `true` for none. Without it, a node has the content
    /// of its main file.
    pub(super) fn configurations(&self) -> Configurations {
        match self.query("exclude_configurations") {
            None => Configurations::Main,
            Some(_) if self.query_flag("exclude_configurations") => Configurations::Excluded,
            Some(_) => Configurations::Files,
        }
    }

    fn details(&self) -> Details {
        Details { operational: self.operational(), configurations: self.configurations() }
    }
}

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint::new("nodes", GET, "/nodes", |server, request| {
        let details = request.details();
        json(server.with_labs(|labs, host| {
            let is_visible =
                |(id, lab): &(&String, &Lab)| host.users.is_permitted(&request.caller, id, &lab.owner, VIEW);
            labs.iter().filter(is_visible).flat_map(|(id, lab)| lab.nodes(id, host, details)).collect()
        }))
    }),
    Endpoint::new("lab_nodes", GET, "/labs/{lab}/nodes", |server, request| {
        let details = request.details();
        json(server.with_lab(request.param(0), |lab, host| {
            let with_data = request.query_flag("data");
            Ok(if with_data { json!(lab.nodes(request.param(0), host, details)) } else { json!(lab.node_ids()) })
        })?)
    })
    .on_lab(VIEW),
    Endpoint::new("create_node", POST, "/labs/{lab}/nodes", create_node).on_lab(EDIT),
    Endpoint::new("node", GET, "/labs/{lab}/nodes/{node}", |server, request| {
        let details = request.details();
        json(
            server
                .with_lab(request.param(0), |lab, host| lab.node(request.param(0), request.param(1), host, details))?,
        )
    })
    .on_lab(VIEW),
    Endpoint::new("update_node", PATCH, "/labs/{lab}/nodes/{node}", |server, request| {
        let body = request.object()?;
        server.with_lab(request.param(0), |lab, host| lab.update_node(request.param(1), body, host))?;
        json(request.param(1).into())
    })
    .on_lab(EDIT),
    Endpoint::new("delete_node", DELETE, "/labs/{lab}/nodes/{node}", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.remove_node(request.param(1))))
    })
    .on_lab(EDIT),
    Endpoint::new("node_state", GET, "/labs/{lab}/nodes/{node}/state", |server, request| {
        json(server.with_lab(request.param(0), |lab, host| lab.node_state(request.param(1), host))?)
    })
    .on_lab(VIEW),
    Endpoint::new("node_converged", GET, "/labs/{lab}/nodes/{node}/check_if_converged", |server, request| {
        let state = server.with_lab(request.param(0), |lab, host| lab.node_state(request.param(1), host))?;
        json((state["state"] != "STARTED").into())
    })
    .on_lab(VIEW),
    Endpoint::new("start_node", PUT, "/labs/{lab}/nodes/{node}/state/start", |server, request| {
        no_content(server.apply(request.param(0), Some(request.param(1)), Action::Start))
    })
    .on_lab(EXEC),
    Endpoint::new("stop_node", PUT, "/labs/{lab}/nodes/{node}/state/stop", |server, request| {
        no_content(server.apply(request.param(0), Some(request.param(1)), Action::Stop))
    })
    .on_lab(EXEC),
    Endpoint::new("wipe_node", PUT, "/labs/{lab}/nodes/{node}/wipe_disks", |server, request| {
        no_content(server.apply(request.param(0), Some(request.param(1)), Action::Wipe))
    })
    .on_lab(EXEC),
    Endpoint::new("extract_configuration", PUT, "/labs/{lab}/nodes/{node}/extract_configuration", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, host| lab.extract_configuration(request.param(1), host)))
    })
    .on_lab(EDIT),
    Endpoint::new("console_key", GET, "/labs/{lab}/nodes/{node}/keys/console", |server, request| {
        let line = request.query("line").unwrap_or("0");
        let invalid = || CmlError::bad_request(format!("Invalid line {line}: expected a number from 0 up."));
        let line = line.parse().map_err(|_| invalid())?;
        json(server.with_lab(request.param(0), |lab, host| lab.console_key(request.param(1), line, host))?)
    })
    .on_lab(EXEC),
    // No node definition has a graphical console.
    Endpoint::new("vnc_key", GET, "/labs/{lab}/nodes/{node}/keys/vnc", |server, request| {
        server.with_lab(request.param(0), |lab, _| lab.find_node(request.param(1)).map(drop))?;
        Err(CmlError::not_found("VNC console", request.param(1)))
    })
    .on_lab(EXEC),
    Endpoint::new("console_keys", GET, "/keys/console", |server, _| {
        let keys = server.with_labs(|labs, host| {
            labs.iter().flat_map(|(id, lab)| lab.console_keys(id, host)).collect::<serde_json::Map<_, _>>()
        });
        json(keys.into())
    })
    .admin(),
    Endpoint::new("node_layer3_addresses", GET, "/labs/{lab}/nodes/{node}/layer3_addresses", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| lab.layer3_addresses(request.param(1)))?)
    })
    .on_lab(VIEW),
    Endpoint::new("clear_node_addresses", DELETE, "/labs/{lab}/nodes/{node}/layer3_addresses", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.find_node(request.param(1)).map(drop)))
    })
    .on_lab(EXEC),
    Endpoint::new("layer3_addresses", GET, "/labs/{lab}/layer3_addresses", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| Ok(lab.all_layer3_addresses()))?)
    })
    .on_lab(VIEW),
    Endpoint::new("clear_addresses", DELETE, "/labs/{lab}/layer3_addresses", |_, _| no_content(Ok(()))).on_lab(EXEC),
    Endpoint::new("lab_interfaces", GET, "/labs/{lab}/interfaces", |server, request| {
        // `virl2_client` 2.10 reads objects without asking for data, from controllers of every release it supports.
        let with_data = request.query("data").is_none() || request.query_flag("data");
        let operational = request.operational();
        json(server.with_lab(request.param(0), |lab, _| {
            let (id, ids) = (request.param(0), || json!(lab.cabling.interface_ids()));
            Ok(if with_data { lab.interfaces_json(id, operational).into() } else { ids() })
        })?)
    })
    .on_lab(VIEW),
    Endpoint::new("create_interface", POST, "/labs/{lab}/interfaces", create_interface).on_lab(EDIT),
    Endpoint::new("interface", GET, "/labs/{lab}/interfaces/{interface}", |server, request| {
        json(interface(server, request, request.operational())?)
    })
    .on_lab(VIEW),
    Endpoint::new("update_interface", PATCH, "/labs/{lab}/interfaces/{interface}", |server, request| {
        let body = request.object()?;
        server.with_lab(request.param(0), |lab, _| lab.update_interface(request.param(1), &body))?;
        json(interface(server, request, Operational::Hidden)?)
    })
    .on_lab(EDIT),
    Endpoint::new("interface_state", GET, "/labs/{lab}/interfaces/{interface}/state", |server, request| {
        let interface = interface(server, request, Operational::Hidden)?;
        json(json!({"label": interface["label"], "state": interface["state"]}))
    })
    .on_lab(VIEW),
    Endpoint::new("start_interface", PUT, "/labs/{lab}/interfaces/{interface}/state/start", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.cabling.set_interface(request.param(1), true)))
    })
    .on_lab(EXEC),
    Endpoint::new("stop_interface", PUT, "/labs/{lab}/interfaces/{interface}/state/stop", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.cabling.set_interface(request.param(1), false)))
    })
    .on_lab(EXEC),
    Endpoint::new("delete_interface", DELETE, "/labs/{lab}/interfaces/{interface}", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.cabling.remove_interface(request.param(1))))
    })
    .on_lab(EDIT),
    Endpoint::new("node_interfaces", GET, "/labs/{lab}/nodes/{node}/interfaces", |server, request| {
        let operational = request.operational();
        json(server.with_lab(request.param(0), |lab, _| {
            lab.find_node(request.param(1))?;
            if request.query_flag("data") {
                return Ok(lab.node_interfaces_json(request.param(0), request.param(1), operational).into());
            }
            let interfaces = lab.cabling.node_interfaces(request.param(1));
            Ok(json!(interfaces.into_iter().map(|(id, _)| id).collect::<Vec<_>>()))
        })?)
    })
    .on_lab(VIEW),
    Endpoint::new("lab_links", GET, "/labs/{lab}/links", |server, request| {
        let with_data = request.query_flag("data");
        json(server.with_lab(request.param(0), |lab, host| {
            let ids = || json!(lab.cabling.link_ids());
            Ok(if with_data { lab.all_links_json(request.param(0), host).into() } else { ids() })
        })?)
    })
    .on_lab(VIEW),
    Endpoint::new("create_link", POST, "/labs/{lab}/links", create_link).on_lab(EDIT),
    Endpoint::new("link", GET, "/labs/{lab}/links/{link}", |server, request| {
        json(server.with_lab(request.param(0), |lab, host| lab.link(request.param(0), request.param(1), host))?)
    })
    .on_lab(VIEW),
    Endpoint::new("link_state", GET, "/labs/{lab}/links/{link}/state", |server, request| {
        let link = server.with_lab(request.param(0), |lab, host| lab.link(request.param(0), request.param(1), host))?;
        json(json!({"label": link["label"], "state": link["state"]}))
    })
    .on_lab(VIEW),
    Endpoint::new("link_converged", GET, "/labs/{lab}/links/{link}/check_if_converged", |server, request| {
        server.with_lab(request.param(0), |lab, host| lab.link(request.param(0), request.param(1), host).map(drop))?;
        json(true.into())
    })
    .on_lab(VIEW),
    Endpoint::new("start_link", PUT, "/labs/{lab}/links/{link}/state/start", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.cabling.set_link(request.param(1), true)))
    })
    .on_lab(EXEC),
    Endpoint::new("stop_link", PUT, "/labs/{lab}/links/{link}/state/stop", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.cabling.set_link(request.param(1), false)))
    })
    .on_lab(EXEC),
    Endpoint::new("delete_link", DELETE, "/labs/{lab}/links/{link}", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.cabling.remove_link(request.param(1))))
    })
    .on_lab(EDIT),
    Endpoint::new("link_condition", GET, "/labs/{lab}/links/{link}/condition", |server, request| {
        json(server.with_lab(request.param(0), |lab, _| lab.cabling.condition(request.param(1)))?)
    })
    .on_lab(VIEW),
    Endpoint::new("set_link_condition", PATCH, "/labs/{lab}/links/{link}/condition", |server, request| {
        let body = request.object()?;
        json(server.with_lab(request.param(0), |lab, _| lab.cabling.set_condition(request.param(1), body))?)
    })
    .on_lab(EDIT),
    Endpoint::new("delete_link_condition", DELETE, "/labs/{lab}/links/{link}/condition", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, _| lab.cabling.clear_condition(request.param(1))))
    })
    .on_lab(EDIT),
    Endpoint::new("start_capture", PUT, "/labs/{lab}/links/{link}/capture/start", |server, request| {
        let body = request.object()?;
        json(
            server
                .with_lab(request.param(0), |lab, host| lab.cabling.start_capture(request.param(1), body, host.now))?,
        )
    })
    .on_lab(EXEC),
    Endpoint::new("stop_capture", PUT, "/labs/{lab}/links/{link}/capture/stop", |server, request| {
        no_content(server.with_lab(request.param(0), |lab, host| lab.cabling.stop_capture(request.param(1), host.now)))
    })
    .on_lab(EXEC),
    Endpoint::new("capture_status", GET, "/labs/{lab}/links/{link}/capture/status", |server, request| {
        json(server.with_lab(request.param(0), |lab, host| lab.cabling.capture(request.param(1), host.now))?)
    })
    .on_lab(VIEW),
    // The key of a capture is the id of its link.
    Endpoint::new("capture_key", GET, "/labs/{lab}/links/{link}/capture/key", |server, request| {
        server.with_lab(request.param(0), |lab, _| lab.cabling.condition(request.param(1)).map(drop))?;
        json(request.param(1).into())
    })
    .on_lab(VIEW),
    Endpoint::new("capture_file", GET, "/pcap/{link}", |server, request| {
        find_capture(server, request)?;
        Ok(([(CONTENT_TYPE, "application/vnd.tcpdump.pcap")], EMPTY_PCAP).into_response())
    }),
    Endpoint::new("captured_packets", GET, "/pcap/{link}/packets", |server, request| {
        find_capture(server, request)?;
        json(json!([]))
    }),
    Endpoint::new("captured_packet", GET, "/pcap/{link}/packets/{packet}", |server, request| {
        find_capture(server, request)?;
        Err(CmlError::not_found("Packet", request.param(1)))
    }),
];

/// Checks that the sender may see the link of a capture.
fn find_capture(server: &CmlServer, request: &ApiRequest) -> Result<(), CmlError> {
    let is_visible = server.with_labs(|labs, host| {
        labs.iter().any(|(id, lab)| {
            lab.cabling.condition(request.param(0)).is_ok()
                && host.users.is_permitted(&request.caller, id, &lab.owner, VIEW)
        })
    });
    if is_visible { Ok(()) } else { Err(CmlError::not_found("Link", request.param(0))) }
}

fn create_node(server: &CmlServer, request: &ApiRequest) -> EndpointResult {
    let mut rest = request.object()?;
    let mut take = |field: &str| match rest.remove(field) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        _ => Err(CmlError::bad_request(format!("Field {field} is required and must be a string."))),
    };
    let node = NewNode { label: take("label")?, node_definition: take("node_definition")?, rest };
    let id = server.add_node(request.param(0), node)?;
    if request.query_flag("populate_interfaces") {
        server.populate_interfaces(request.param(0), &id)?;
    }
    json(json!({"id": id}))
}

fn interface(server: &CmlServer, request: &ApiRequest, operational: Operational) -> Result<Value, CmlError> {
    server.with_lab(request.param(0), |lab, _| lab.interface(request.param(0), request.param(1), operational))
}

fn create_interface(server: &CmlServer, request: &ApiRequest) -> EndpointResult {
    let fields = request.object()?;
    let node = required(&fields, "node")?;
    let slot = match fields.get("slot") {
        None | Some(Value::Null) => None,
        Some(slot) => {
            let slot = slot.as_u64().and_then(|slot| u32::try_from(slot).ok());
            Some(slot.ok_or_else(|| CmlError::bad_request("Field slot must be an integer from 0 up."))?)
        }
    };
    let mac_address = parse_mac_address(fields.get("mac_address"))?;
    let added = server.add_interfaces(request.param(0), node, slot)?;
    let mut interfaces = server.with_lab(request.param(0), |lab, _| {
        // The address is meant for the slot of the request, which is the last one.
        if let (Some(address), Some(last)) = (mac_address, added.last()) {
            lab.update_interface(last, &[("mac_address".to_owned(), address.into())].into_iter().collect())?;
        }
        let shown = |id: &String| lab.interface(request.param(0), id, Operational::Hidden);
        added.iter().map(shown).collect::<Result<Vec<_>, _>>()
    })?;
    // One interface is returned as an object, several as a list.
    json(if interfaces.len() == 1 { interfaces.remove(0) } else { interfaces.into() })
}

fn create_link(server: &CmlServer, request: &ApiRequest) -> EndpointResult {
    let fields = request.object()?;
    let end = |field: &str| required(&fields, field).map(str::to_owned);
    let id = server.add_link(request.param(0), [end("src_int")?, end("dst_int")?])?;
    json(server.with_lab(request.param(0), |lab, host| lab.link(request.param(0), &id, host))?)
}
