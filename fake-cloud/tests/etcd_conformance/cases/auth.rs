//! Users, roles, permissions and logins.

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, DeleteOptions, GetOptions, LeaseGrantOptions, Permission, PutOptions,
    RoleRevokePermissionOptions, Txn, TxnOp, UserAddOptions, WatchOptions,
};

use crate::session::{Session, with_timeout};

/// Connects a user to the server of a session.
async fn log_in(s: &mut Session, user: &str, password: &str) -> Result<Client, etcd_client::Error> {
    let endpoint = s.endpoint().await;
    Client::connect([endpoint], Some(ConnectOptions::new().with_user(user, password))).await
}

/// Makes a call as another client, and records its result.
macro_rules! call_as {
    ($session:expr, $client:expr, $label:expr, $call:expr) => {{
        let mut client = $client.clone();
        let result = with_timeout($label, $call(&mut client)).await;
        $session.record_result($label, &result);
    }};
}

/// Creates the users root and reader, and the role `files` with permissions below `f/`.
async fn set_up(s: &mut Session) {
    s.call("add root", async |c| c.user_add("root", "secret", None).await).await;
    s.call("add reader", async |c| c.user_add("reader", "open", None).await).await;
    s.call("grant root", async |c| c.user_grant_role("root", "root").await).await;
    s.call("add role", async |c| c.role_add("files").await).await;
    for (label, permission) in [
        ("read", Permission::read("f/").with_prefix()),
        ("write", Permission::write("f/mine")),
        ("both", Permission::read_write("f/both").with_range_end("f/both/z")),
    ] {
        s.call(label, async |c| c.role_grant_permission("files", permission).await).await;
    }
    s.call("grant files", async |c| c.user_grant_role("reader", "files").await).await;
    s.call("enable", async |c| c.auth_enable().await).await;
}

/// Disables authentication and removes all users and roles.
async fn tear_down(s: &mut Session) {
    let root = log_in(s, "root", "secret").await.expect("a login");
    call_as!(s, root, "disable", async |c: &mut Client| c.auth_disable().await);
    let users = s.client.user_list().await.expect("a response");
    for user in users.users() {
        s.client.user_delete(user).await.expect("deleted");
    }
    let roles = s.client.role_list().await.expect("a response");
    for role in roles.roles() {
        s.client.role_delete(role).await.expect("deleted");
    }
}

pub(crate) async fn users_and_roles(mut s: Session) -> Session {
    s.call("enable without root", async |c| c.auth_enable().await).await;
    s.call("no name", async |c| c.user_add("", "x", None).await).await;
    s.call("add", async |c| c.user_add("root", "x", None).await).await;
    s.call("add again", async |c| c.user_add("root", "x", None).await).await;
    s.call("enable without the role", async |c| c.auth_enable().await).await;
    let passwordless = UserAddOptions::new().with_no_pwd();
    s.call("add without password", async |c| c.user_add("ann", "", Some(passwordless)).await).await;
    s.call("users", async |c| c.user_list().await).await;
    s.call("unknown user", async |c| c.user_get("bob").await).await;
    s.call("user without roles", async |c| c.user_get("ann").await).await;
    s.call("unknown role", async |c| c.user_grant_role("ann", "none").await).await;
    s.call("role of an unknown user", async |c| c.user_grant_role("bob", "none").await).await;
    s.call("root role", async |c| c.user_grant_role("ann", "root").await).await;
    s.call("the same again", async |c| c.user_grant_role("ann", "root").await).await;
    s.call("role", async |c| c.role_add("b").await).await;
    s.call("the same role", async |c| c.role_add("b").await).await;
    s.call("role without name", async |c| c.role_add("").await).await;
    s.call("another role", async |c| c.role_add("a").await).await;
    s.call("roles", async |c| c.role_list().await).await;
    s.call("grant b", async |c| c.user_grant_role("ann", "b").await).await;
    s.call("grant a", async |c| c.user_grant_role("ann", "a").await).await;
    s.call("sorted", async |c| c.user_get("ann").await).await;
    s.call("revoke", async |c| c.user_revoke_role("ann", "a").await).await;
    s.call("revoke again", async |c| c.user_revoke_role("ann", "a").await).await;
    s.call("revoke of an unknown user", async |c| c.user_revoke_role("bob", "a").await).await;
    for permission in [
        Permission::read("k"),
        Permission::write("k"),
        Permission::read_write("k").with_prefix(),
        Permission::read("a").with_from_key(),
        Permission::write("").with_all_keys(),
    ] {
        s.call("grant", async |c| c.role_grant_permission("b", permission).await).await;
    }
    s.call("grant to an unknown role", async |c| c.role_grant_permission("c", Permission::read("k")).await).await;
    s.call("permissions", async |c| c.role_get("b").await).await;
    s.call("no permissions", async |c| c.role_get("a").await).await;
    s.call("unknown", async |c| c.role_get("c").await).await;
    s.call("revoke", async |c| c.role_revoke_permission("b", "k", None).await).await;
    s.call("revoke again", async |c| c.role_revoke_permission("b", "k", None).await).await;
    let prefix = RoleRevokePermissionOptions::new().with_prefix();
    s.call("revoke the prefix", async |c| c.role_revoke_permission("b", "k", Some(prefix)).await).await;
    s.call("left", async |c| c.role_get("b").await).await;
    s.call("delete the role", async |c| c.role_delete("b").await).await;
    s.call("delete again", async |c| c.role_delete("b").await).await;
    s.call("taken from the user", async |c| c.user_get("ann").await).await;
    s.call("change the password", async |c| c.user_change_password("root", "y").await).await;
    s.call("of a user without one", async |c| c.user_change_password("ann", "y").await).await;
    s.call("of an unknown user", async |c| c.user_change_password("bob", "y").await).await;
    s.call("the role root", async |c| c.role_add("root").await).await;
    s.call("delete", async |c| c.user_delete("ann").await).await;
    s.call("delete again", async |c| c.user_delete("ann").await).await;
    for role in ["a", "root"] {
        s.call("delete", async |c| c.role_delete(role).await).await;
    }
    s.call("delete", async |c| c.user_delete("root").await).await;
    s
}

pub(crate) async fn permissions_of_a_user(mut s: Session) -> Session {
    for key in ["f/a", "f/mine", "f/both/1", "g"] {
        s.client.put(key, "v", None).await.expect("a response");
    }
    set_up(&mut s).await;
    let user = log_in(&mut s, "reader", "open").await.expect("a login");
    for key in ["f/a", "f/mine", "g", ""] {
        call_as!(s, user, "get", async |c: &mut Client| c.get(key, None).await);
        call_as!(s, user, "put", async |c: &mut Client| c.put(key, "w", None).await);
    }
    let prefix = || Some(GetOptions::new().with_prefix());
    for key in ["f/", "f", "f/both/"] {
        call_as!(s, user, "get prefix", async |c: &mut Client| c.get(key, prefix()).await);
        let delete = DeleteOptions::new().with_prefix();
        call_as!(s, user, "delete prefix", async |c: &mut Client| c.delete(key, Some(delete)).await);
    }
    call_as!(s, user, "range", async |c: &mut Client| {
        c.get("f/both/1", Some(GetOptions::new().with_range("f/both/5"))).await
    });
    call_as!(s, user, "from key", async |c: &mut Client| {
        c.get("f/a", Some(GetOptions::new().with_from_key())).await
    });
    let with_previous = || Some(PutOptions::new().with_prev_key());
    call_as!(s, user, "previous value", async |c: &mut Client| c.put("f/mine", "x", with_previous()).await);
    let compare = |key: &str| Compare::version(key, CompareOp::Greater, 0);
    for (key, operation) in [
        ("f/a", TxnOp::put("f/mine", "1", None)),
        ("g", TxnOp::put("f/mine", "2", None)),
        ("f/a", TxnOp::put("f/a", "3", None)),
        ("f/a", TxnOp::get("g", None)),
        ("f/a", TxnOp::delete("f/both/1", None)),
        ("f/a", TxnOp::txn(Txn::new().and_then([TxnOp::put("g", "nested", None)]))),
    ] {
        let txn = Txn::new().when([compare(key)]).and_then([operation]);
        call_as!(s, user, "txn", async |c: &mut Client| c.txn(txn).await);
    }
    call_as!(s, user, "compact", async |c: &mut Client| c.compact(2, None).await);
    tear_down(&mut s).await;
    s
}

pub(crate) async fn leases_and_watches_of_a_user(mut s: Session) -> Session {
    set_up(&mut s).await;
    let root = log_in(&mut s, "root", "secret").await.expect("a login");
    let mut user = log_in(&mut s, "reader", "open").await.expect("a login");
    let grant = |id| Some(LeaseGrantOptions::new().with_id(id));
    call_as!(s, user, "grant", async |c: &mut Client| c.lease_grant(600, grant(81)).await);
    call_as!(s, user, "grant", async |c: &mut Client| c.lease_grant(600, grant(82)).await);
    let on = |id| Some(PutOptions::new().with_lease(id));
    call_as!(s, user, "attach", async |c: &mut Client| c.put("f/mine", "v", on(81)).await);
    call_as!(s, root, "attach a foreign key", async |c: &mut Client| c.put("g", "v", on(82)).await);
    call_as!(s, user, "attach to it", async |c: &mut Client| c.put("f/mine", "v", on(82)).await);
    call_as!(s, user, "revoke it", async |c: &mut Client| c.lease_revoke(82).await);
    call_as!(s, user, "leases", async |c: &mut Client| c.leases().await.map(|leases| leases.leases().len()));
    let mut permitted = user.watch("f/mine", None).await.expect("a watch");
    s.record_message("watch", &mut permitted).await;
    let denied = user.watch("g", Some(WatchOptions::new())).await;
    match denied {
        Ok(mut stream) => drop(s.record_message("denied watch", &mut stream).await),
        Err(error) => s.record_result::<()>("denied watch", &Err(error)),
    }
    call_as!(s, user, "campaign", async |c: &mut Client| c.campaign("seat", "me", 81).await);
    call_as!(s, user, "lock", async |c: &mut Client| c.lock("door", None).await);
    call_as!(s, user, "revoke", async |c: &mut Client| c.lease_revoke(81).await);
    call_as!(s, root, "revoke", async |c: &mut Client| c.lease_revoke(82).await);
    tear_down(&mut s).await;
    s
}

pub(crate) async fn administration_needs_the_role_root(mut s: Session) -> Session {
    set_up(&mut s).await;
    let user = log_in(&mut s, "reader", "open").await.expect("a login");
    let root = log_in(&mut s, "root", "secret").await.expect("a login");
    let member = root.clone().member_list().await.expect("a response").members()[0].id();
    let anonymous = s.client.clone();
    for (name, client) in [("anonymous", &anonymous), ("user", &user), ("root", &root)] {
        s.record("as", name);
        call_as!(s, client, "get", async |c: &mut Client| c.get("g", None).await);
        call_as!(s, client, "put", async |c: &mut Client| c.put("g", "v", None).await);
        call_as!(s, client, "own user", async |c: &mut Client| c.user_get("reader").await);
        call_as!(s, client, "other user", async |c: &mut Client| c.user_get("root").await);
        call_as!(s, client, "users", async |c: &mut Client| c.user_list().await);
        call_as!(s, client, "own role", async |c: &mut Client| c.role_get("files").await);
        call_as!(s, client, "other role", async |c: &mut Client| c.role_get("other").await);
        call_as!(s, client, "add user", async |c: &mut Client| c.user_add("new", "x", None).await);
        call_as!(s, client, "delete root", async |c: &mut Client| c.user_delete("root").await);
        call_as!(s, client, "revoke root", async |c: &mut Client| c.user_revoke_role("root", "root").await);
        call_as!(s, client, "delete role root", async |c: &mut Client| c.role_delete("root").await);
        call_as!(s, client, "enable", async |c: &mut Client| c.auth_enable().await);
        call_as!(s, client, "hash", async |c: &mut Client| c.hash_kv(0).await.map(|_| ()));
        call_as!(s, client, "defragment", async |c: &mut Client| c.defragment().await);
        call_as!(s, client, "move", async |c: &mut Client| c.move_leader(member).await);
        call_as!(s, client, "status", async |c: &mut Client| c.status().await.map(|status| status.is_learner()));
        call_as!(s, client, "members", async |c: &mut Client| c.member_list().await.map(|list| list.members().len()));
        call_as!(s, client, "remove", async |c: &mut Client| c.member_remove(7).await);
    }
    tear_down(&mut s).await;
    s
}

pub(crate) async fn logins_and_tokens(mut s: Session) -> Session {
    set_up(&mut s).await;
    let root = log_in(&mut s, "root", "secret").await.expect("a login");
    for (user, password) in [("reader", "wrong"), ("nobody", "x"), ("", ""), ("reader", "")] {
        let rejected = log_in(&mut s, user, password).await.map(|_| ());
        s.record_result("rejected login", &rejected);
    }
    let passwordless = UserAddOptions::new().with_no_pwd();
    call_as!(s, root, "add", async |c: &mut Client| c.user_add("cert", "", Some(passwordless)).await);
    let rejected = log_in(&mut s, "cert", "x").await.map(|_| ());
    s.record_result("login without password", &rejected);
    let user = log_in(&mut s, "reader", "open").await.expect("a login");
    call_as!(s, user, "valid", async |c: &mut Client| c.get("f/a", None).await);
    call_as!(s, root, "change", async |c: &mut Client| c.user_change_password("reader", "new").await);
    call_as!(s, user, "old token", async |c: &mut Client| c.get("f/a", None).await);
    let user = log_in(&mut s, "reader", "new").await.expect("a login");
    call_as!(s, user, "new token", async |c: &mut Client| c.get("f/a", None).await);
    call_as!(s, root, "revoke", async |c: &mut Client| c.user_revoke_role("reader", "files").await);
    call_as!(s, user, "without the role", async |c: &mut Client| c.get("f/a", None).await);
    call_as!(s, root, "delete", async |c: &mut Client| c.user_delete("reader").await);
    call_as!(s, user, "deleted user", async |c: &mut Client| c.get("f/a", None).await);
    tear_down(&mut s).await;
    call_as!(s, root, "token while disabled", async |c: &mut Client| c.get("f/a", None).await);
    call_as!(s, root, "put while disabled", async |c: &mut Client| c.put("f/a", "v", None).await);
    s
}
