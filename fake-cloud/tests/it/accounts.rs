//! Tests of STS and of accounts that do not see each other's resources.

use fake_cloud::faults::{Action, CredentialProblem, Rule};
use fake_cloud::world::{ACCOUNT, AMAZON, Account, Image, Sharing};
use fake_cloud::{FakeCloud, RequestFilter, Service};

use crate::support::{Cloud, Response, form};

const HERE: &str = "us-east-1";
const OTHER: &str = "999999999999";
const OTHER_KEY: &str = "AKIAOTHER";

fn other() -> Account {
    Account::new(OTHER, OTHER_KEY).expect("a valid account")
}

/// Starts a cloud with a second account.
async fn two_accounts() -> Cloud {
    let cloud = Cloud::start().await;
    cloud.world.add_account(&other());
    cloud
}

/// Sends a request to EC2 with the credentials of the second account.
async fn ec2_as_other(cloud: &Cloud, action: &str, parameters: &[(&str, &str)]) -> Response {
    cloud.send_as(OTHER_KEY, "ec2", &form(action, parameters)).await
}

/// Launches an instance over the API and returns its id and the owner of its reservation.
async fn launch(cloud: &Cloud, access_key: &str, token: &str) -> (String, String) {
    let image = cloud.image();
    let parameters = [("ImageId", image.as_str()), ("MinCount", "1"), ("MaxCount", "1"), ("ClientToken", token)];
    let response = cloud.send_as(access_key, "ec2", &form("RunInstances", &parameters)).await;
    (response.between("<instanceId>", "</instanceId>"), response.between("<ownerId>", "</ownerId>"))
}

fn image(id: &str, name: &str, owner: &str, sharing: Sharing) -> Image {
    Image {
        id: id.to_owned(),
        name: name.to_owned(),
        description: String::new(),
        creation_date: "2026-10-01T00:00:00.000Z".to_owned(),
        owner: owner.to_owned(),
        sharing,
        tags: Default::default(),
    }
}

#[tokio::test]
async fn caller_identity_is_the_account_of_the_access_key() {
    let cloud = two_accounts().await;
    let body = b"Action=GetCallerIdentity&Version=2011-06-15";
    for (key, account) in [("fake", ACCOUNT), (OTHER_KEY, OTHER)] {
        let response = cloud.send_as(key, "sts", body).await;
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.between("<Account>", "</Account>"), account);
        assert_eq!(response.between("<Arn>", "</Arn>"), format!("arn:aws:iam::{account}:user/fake"));
        assert!(response.between("<UserId>", "</UserId>").starts_with("AIDA"));
    }
    let refused = cloud.send_as("fake", "sts", b"Action=AssumeRole&Version=2011-06-15").await;
    assert_eq!((refused.status, refused.between("<Code>", "</Code>").as_str()), (400, "InvalidAction"));
    assert!(refused.text().starts_with("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ErrorResponse xmlns="));
    let filter = RequestFilter { service: Some(Service::Sts), ..RequestFilter::default() };
    let logged = cloud.world.request_log().find(&filter);
    assert_eq!(logged.len(), 3);
    assert_eq!(logged[0].operation, "GetCallerIdentity");
}

#[tokio::test]
async fn instances_of_another_account_do_not_exist() {
    let cloud = two_accounts().await;
    let (mine, owner) = launch(&cloud, "fake", "token").await;
    assert_eq!(owner, ACCOUNT);
    // The same client token is free in another account.
    let (theirs, owner) = launch(&cloud, OTHER_KEY, "token").await;
    assert_eq!(owner, OTHER);
    assert_ne!(mine, theirs);
    for action in ["DescribeInstances", "DescribeInstanceStatus", "StopInstances", "TerminateInstances"] {
        let response = ec2_as_other(&cloud, action, &[("InstanceId.1", &mine)]).await;
        assert_eq!(response.between("<Code>", "</Code>"), "InvalidInstanceID.NotFound", "{action}");
    }
    let tag = [("ResourceId.1", mine.as_str()), ("Tag.1.Key", "k"), ("Tag.1.Value", "v")];
    let response = ec2_as_other(&cloud, "CreateTags", &tag).await;
    assert_eq!(response.between("<Code>", "</Code>"), "InvalidInstanceID.NotFound");
    let listed = ec2_as_other(&cloud, "DescribeInstances", &[]).await.text();
    assert!(listed.contains(&theirs) && !listed.contains(&mine), "{listed}");
    let listed = cloud.ec2("DescribeInstances", &[]).await.text();
    assert!(listed.contains(&mine) && !listed.contains(&theirs), "{listed}");
    assert!(listed.contains(&format!("<ownerId>{ACCOUNT}</ownerId>")) && !listed.contains(OTHER));
}

#[tokio::test]
async fn subnets_and_groups_belong_to_their_account() {
    let cloud = two_accounts().await;
    let mine = cloud.ec2("DescribeSubnets", &[]).await.between("<subnetId>", "</subnetId>");
    let described = ec2_as_other(&cloud, "DescribeSubnets", &[]).await;
    let theirs = described.between("<subnetId>", "</subnetId>");
    assert_ne!(mine, theirs);
    assert_eq!(described.between("<ownerId>", "</ownerId>"), OTHER);
    assert!(described.text().contains(&format!("arn:aws:ec2:{HERE}:{OTHER}:subnet/{theirs}")));
    let response = ec2_as_other(&cloud, "DescribeSubnets", &[("SubnetId.1", &mine)]).await;
    assert_eq!(response.between("<Code>", "</Code>"), "InvalidSubnetID.NotFound");
    let image = cloud.image();
    let launch = [("ImageId", image.as_str()), ("MinCount", "1"), ("MaxCount", "1"), ("SubnetId", mine.as_str())];
    let response = ec2_as_other(&cloud, "RunInstances", &launch).await;
    assert_eq!(response.between("<Code>", "</Code>"), "InvalidSubnetID.NotFound");
}

#[tokio::test]
async fn images_are_selected_by_owner_and_sharing() {
    let cloud = two_accounts().await;
    for image in [
        image("ami-00000001", "private", OTHER, Sharing::Private),
        image("ami-00000002", "public", OTHER, Sharing::Public),
        image("ami-00000003", "linux", AMAZON, Sharing::Public),
        image("ami-00000004", "own", ACCOUNT, Sharing::Private),
    ] {
        cloud.world.console_put_image(HERE, image).expect("a region");
    }
    let names = async |access_key: &str, owner: &str| {
        let parameters: &[(&str, &str)] = if owner.is_empty() { &[] } else { &[("Owner.1", owner)] };
        let text = cloud.send_as(access_key, "ec2", &form("DescribeImages", parameters)).await.text();
        ["private", "public", "linux", "own"]
            .into_iter()
            .filter(|name| text.contains(&format!("<name>{name}</name>")))
            .collect::<Vec<_>>()
    };
    assert_eq!(names("fake", "").await, ["public", "linux", "own"]);
    assert_eq!(names("fake", "self").await, ["own"]);
    assert_eq!(names("fake", "amazon").await, ["linux"]);
    assert_eq!(names("fake", OTHER).await, ["public"]);
    assert_eq!(names(OTHER_KEY, "self").await, ["private", "public"]);
    let described = cloud.ec2("DescribeImages", &[("ImageId.1", "ami-00000003")]).await;
    assert_eq!(described.between("<imageOwnerAlias>", "</imageOwnerAlias>"), "amazon");
    assert_eq!(described.between("<isPublic>", "</isPublic>"), "true");
    let launch = [("ImageId", "ami-00000001"), ("MinCount", "1"), ("MaxCount", "1")];
    let response = cloud.ec2("RunInstances", &launch).await;
    assert_eq!(response.between("<Code>", "</Code>"), "InvalidAMIID.NotFound");
}

#[tokio::test]
async fn rejected_credentials_have_the_code_of_each_service() {
    let cloud = Cloud::start().await;
    for (problem, codes) in [
        (CredentialProblem::Expired, [("RequestExpired", 400), ("ExpiredToken", 403), ("ExpiredToken", 403)]),
        (
            CredentialProblem::Invalid,
            [("AuthFailure", 401), ("InvalidClientTokenId", 403), ("InvalidClientTokenId", 403)],
        ),
    ] {
        cloud.world.faults().clear();
        cloud.world.faults().add(Rule::new(Action::Credentials { problem })).expect("a valid rule");
        let responses = [
            cloud.ec2("DescribeInstances", &[]).await,
            cloud.send("sts", &[], b"Action=GetCallerIdentity&Version=2011-06-15").await,
            cloud.send("monitoring", &[], b"Action=ListMetrics&Version=2010-08-01").await,
        ];
        for (response, (code, status)) in responses.iter().zip(codes) {
            assert_eq!((response.between("<Code>", "</Code>").as_str(), response.status), (code, status));
        }
    }
    // A named code is available for any action as well.
    cloud.world.faults().clear();
    for code in ["RequestExpired", "ExpiredToken", "AuthFailure"] {
        let action = Action::Error { code: code.to_owned(), status: None, message: None };
        let rule = Rule { operation: Some("TerminateInstances".to_owned()), times: Some(1), ..Rule::new(action) };
        cloud.world.faults().add(rule).expect("a valid rule");
        let response = cloud.ec2("TerminateInstances", &[("InstanceId.1", "i-12345678")]).await;
        assert_eq!(response.between("<Code>", "</Code>"), code);
    }
}

#[tokio::test]
async fn accounts_of_the_builder_survive_a_reset() {
    let cloud = FakeCloud::builder().account(other()).start().await.expect("a cloud");
    let instance = cloud.run_instance_in(OTHER, HERE, &[("team", "red")]).expect("an instance");
    assert_eq!(&*instance.owner, OTHER);
    assert_ne!(cloud.run_instance(HERE, &[]).expect("an instance").subnet_id, instance.subnet_id);
    cloud.add_account(&Account::new("888888888888", "AKIATHIRD").expect("a valid account"));
    assert_eq!(&*cloud.world().account_of("AKIATHIRD"), "888888888888");
    cloud.reset(fake_cloud::admin::ResetTo::Empty).expect("a reset");
    assert_eq!(cloud.world().accounts(), [other()]);
    cloud.run_instance_in(OTHER, HERE, &[]).expect("the account still has a subnet");
    cloud.stop().await;
}
