//! The model passes the suite of its port.

use super::*;
use crate::conformance::compute::{ComputeWorld, suite};
use crate::ports::SystemClock;

struct Fixture(MemoryCompute);

#[async_trait]
impl ComputeWorld for Fixture {
    fn compute(&self) -> &dyn Compute {
        &self.0
    }

    fn region(&self) -> &str {
        "us-east-1"
    }

    fn other_region(&self) -> &str {
        "eu-west-1"
    }

    fn plan(&self) -> LaunchPlan {
        LaunchPlan {
            region: self.region().to_owned(),
            image_id: "ami-2".to_owned(),
            instance_type: "m5zn.metal".to_owned(),
            subnet_id: "subnet-1".to_owned(),
            security_group_ids: vec!["sg-1".to_owned()],
            key_name: None,
            tags: BTreeMap::new(),
            generation: 0,
            client_token: String::new(),
        }
    }

    fn image_pattern(&self) -> String {
        "cml-2.?.1*".to_owned()
    }

    async fn settle(&self) {
        self.0.settle();
    }

    async fn forget_terminated(&self) {
        for instance in self.0.all(self.region()) {
            if instance.state == Ec2State::Terminated {
                self.0.forget(self.region(), &instance.id);
            }
        }
    }

    async fn fail(&self, failure: &CallFailure) {
        for operation in [
            ComputeOperation::Instances,
            ComputeOperation::Tagged,
            ComputeOperation::Images,
            ComputeOperation::Scan,
            ComputeOperation::SeesSubnet,
            ComputeOperation::Launch,
            ComputeOperation::Start,
            ComputeOperation::Stop,
            ComputeOperation::Terminate,
        ] {
            self.0.fail_next(operation, failure.clone());
        }
    }

    async fn recover(&self) {
        self.0.clear_failures();
    }
}

fn fixture() -> Fixture {
    let compute = MemoryCompute::new(Arc::new(SystemClock));
    for (id, name) in [("ami-1", "cml-2.8.0"), ("ami-2", "cml-2.9.1-x")] {
        let creation_date = "2026-01-01T00:00:00.000Z".to_owned();
        compute.put_image("us-east-1", Image { id: id.to_owned(), name: name.to_owned(), creation_date });
    }
    compute.put_subnet("us-east-1", "subnet-1");
    Fixture(compute)
}

#[tokio::test]
async fn the_model_keeps_every_promise_of_the_port() {
    suite(&fixture()).await;
}

#[tokio::test]
async fn a_lost_answer_to_a_launch_leaves_an_instance_that_the_same_plan_finds() {
    let fixture = fixture();
    let lost = CallFailure::new(FailureKind::Unclear, "the connection was cut");
    fixture.0.lose_next_answer(ComputeOperation::Launch, lost.clone());
    let plan = LaunchPlan { client_token: "once".to_owned(), ..fixture.plan() };
    assert_eq!(fixture.0.launch(&plan).await, Err(lost));
    let id = fixture.0.launch(&plan).await.expect("it is there");
    assert_eq!(fixture.0.all("us-east-1").iter().map(|instance| &instance.id).collect::<Vec<_>>(), [&id]);
}

#[tokio::test]
async fn what_is_hidden_is_absent_until_it_is_shown() {
    let fixture = fixture();
    let id = InstanceId::from("i-1");
    fixture.0.put("us-east-1", Instance::new("i-1", Ec2State::Running));
    fixture.0.hide("us-east-1", &id);
    assert_eq!(fixture.0.instance("us-east-1", &id).await, Lookup::Absent);
    fixture.0.show("us-east-1", &id);
    assert!(fixture.0.instance("us-east-1", &id).await.found().is_some());
}
