// A walk through EC2, CloudWatch and STS with the AWS SDK for JavaScript. Prints one line of JSON: the steps that
// succeeded, and the problem of each one that failed. AWS_ENDPOINT_URL and NODE_PATH come from tests/peers/aws.py.
import { createRequire } from "node:module";
import { join } from "node:path";

const load = createRequire(join(process.env.NODE_MODULES, "walk.js"));
const ec2Sdk = load("@aws-sdk/client-ec2");
const watchSdk = load("@aws-sdk/client-cloudwatch");
const stsSdk = load("@aws-sdk/client-sts");

const settings = {
  region: "us-east-1",
  endpoint: process.env.AWS_ENDPOINT_URL,
  credentials: { accessKeyId: "fake", secretAccessKey: "fake" },
  maxAttempts: 1,
};
const ec2 = new ec2Sdk.EC2(settings);
const watch = new watchSdk.CloudWatch(settings);
const sts = new stsSdk.STS(settings);

const passed = [];
const failed = {};
async function step(name, body) {
  try {
    await body();
    passed.push(name);
  } catch (problem) {
    failed[name] = String(problem);
  }
}
function equal(actual, expected) {
  if (JSON.stringify(actual) !== JSON.stringify(expected)) {
    throw new Error(`${JSON.stringify(actual)} is not ${JSON.stringify(expected)}`);
  }
}
async function refused(code, call) {
  try {
    await call();
  } catch (problem) {
    equal(problem.name, code);
    return;
  }
  throw new Error(`expected ${code}`);
}

await step("caller identity", async () => equal((await sts.getCallerIdentity({})).Account.length, 12));
await step("regions", async () => equal((await ec2.describeRegions({})).Regions.length, 17));
await step("all regions", async () => equal((await ec2.describeRegions({ AllRegions: true })).Regions.length, 33));
await step("zones", async () => equal((await ec2.describeAvailabilityZones({})).AvailabilityZones.length, 3));
await step("account attributes", async () => {
  const { AccountAttributes } = await ec2.describeAccountAttributes({ AttributeNames: ["default-vpc"] });
  equal(AccountAttributes.length, 1);
});
let image;
await step("images", async () => {
  const { Images } = await ec2.describeImages({ Filters: [{ Name: "name", Values: ["cisco-cml2.9.?-*"] }] });
  equal(Images.length, 2);
  image = Images[0].ImageId;
});
await step("instance types", async () => {
  const { InstanceTypes } = await ec2.describeInstanceTypes({ InstanceTypes: ["m5.large"] });
  equal(InstanceTypes[0].VCpuInfo.DefaultVCpus, 2);
});
await step("instance type offerings", async () => {
  const { InstanceTypeOfferings } = await ec2.describeInstanceTypeOfferings({ LocationType: "availability-zone" });
  equal(InstanceTypeOfferings.length > 0, true);
});
let vpc;
await step("default vpc", async () => {
  const { Vpcs } = await ec2.describeVpcs({ Filters: [{ Name: "is-default", Values: ["true"] }] });
  equal(Vpcs.length, 1);
  vpc = Vpcs[0].VpcId;
});
let subnet;
await step("default subnets", async () => {
  const { Subnets } = await ec2.describeSubnets({ Filters: [{ Name: "default-for-az", Values: ["true"] }] });
  equal(Subnets.length, 3);
  subnet = Subnets[0];
});
await step("own vpc and subnet", async () => {
  const { Vpc } = await ec2.createVpc({ CidrBlock: "10.9.0.0/16" });
  const { Subnet } = await ec2.createSubnet({ VpcId: Vpc.VpcId, CidrBlock: "10.9.1.0/24" });
  equal(Subnet.AvailableIpAddressCount, 251);
  await ec2.deleteSubnet({ SubnetId: Subnet.SubnetId });
  await ec2.deleteVpc({ VpcId: Vpc.VpcId });
  await refused("InvalidVpcID.NotFound", () => ec2.describeVpcs({ VpcIds: [Vpc.VpcId] }));
});
let group;
await step("security group", async () => {
  const made = await ec2.createSecurityGroup({ GroupName: "walk", Description: "walk", VpcId: vpc });
  group = made.GroupId;
  const rule = { IpProtocol: "tcp", FromPort: 22, ToPort: 22, IpRanges: [{ CidrIp: "0.0.0.0/0" }] };
  await ec2.authorizeSecurityGroupIngress({ GroupId: group, IpPermissions: [rule] });
  const { SecurityGroups } = await ec2.describeSecurityGroups({ GroupIds: [group] });
  equal(SecurityGroups[0].IpPermissions[0].ToPort, 22);
  await refused("InvalidPermission.Duplicate", () =>
    ec2.authorizeSecurityGroupIngress({ GroupId: group, IpPermissions: [rule] }),
  );
  await ec2.revokeSecurityGroupIngress({ GroupId: group, IpPermissions: [rule] });
});
await step("key pair", async () => {
  const made = await ec2.createKeyPair({ KeyName: "walk" });
  equal(made.KeyMaterial.startsWith("-----BEGIN"), true);
  await refused("InvalidKeyPair.Duplicate", () => ec2.createKeyPair({ KeyName: "walk" }));
});
let template;
await step("launch template", async () => {
  const data = { ImageId: image, InstanceType: "m5.large", KeyName: "walk" };
  const made = await ec2.createLaunchTemplate({ LaunchTemplateName: "walk", LaunchTemplateData: data });
  template = made.LaunchTemplate.LaunchTemplateId;
  const version = { LaunchTemplateId: template, SourceVersion: "1", LaunchTemplateData: { InstanceType: "m5.xlarge" } };
  await ec2.createLaunchTemplateVersion(version);
  await ec2.modifyLaunchTemplate({ LaunchTemplateId: template, DefaultVersion: "2" });
  const { LaunchTemplateVersions } = await ec2.describeLaunchTemplateVersions({
    LaunchTemplateId: template,
    Versions: ["$Default"],
  });
  equal(LaunchTemplateVersions[0].LaunchTemplateData.InstanceType, "m5.xlarge");
});
let instance;
await step("launch from the template", async () => {
  const { Instances } = await ec2.runInstances({
    MinCount: 1,
    MaxCount: 1,
    LaunchTemplate: { LaunchTemplateId: template },
    SecurityGroupIds: [group],
    SubnetId: subnet.SubnetId,
    ClientToken: "walk",
    TagSpecifications: [{ ResourceType: "instance", Tags: [{ Key: "Name", Value: "walk" }] }],
  });
  equal([Instances[0].InstanceType, Instances[0].KeyName], ["m5.xlarge", "walk"]);
  instance = Instances[0].InstanceId;
});
await step("dry run", () =>
  refused("DryRunOperation", () => ec2.stopInstances({ InstanceIds: [instance], DryRun: true })),
);
await step("wait until it runs", async () => {
  await ec2Sdk.waitUntilInstanceRunning({ client: ec2, maxWaitTime: 30, minDelay: 1, maxDelay: 1 }, { InstanceIds: [instance] });
});
await step("wait until its checks pass", async () => {
  await ec2Sdk.waitUntilInstanceStatusOk({ client: ec2, maxWaitTime: 30, minDelay: 1, maxDelay: 1 }, { InstanceIds: [instance] });
});
await step("tags", async () => {
  await ec2.createTags({ Resources: [instance], Tags: [{ Key: "team", Value: "labs" }] });
  const found = await ec2.describeTags({ Filters: [{ Name: "resource-id", Values: [instance] }] });
  const own = found.Tags.map((tag) => tag.Key).filter((key) => !key.startsWith("aws:"));
  equal(own.sort(), ["Name", "team"]);
  await ec2.deleteTags({ Resources: [instance], Tags: [{ Key: "team" }] });
});
await step("pages", async () => {
  let count = 0;
  const pages = ec2Sdk.paginateDescribeInstances({ client: ec2, pageSize: 5 }, {});
  for await (const page of pages) count += page.Reservations.length;
  equal(count, 1);
});
await step("attributes", async () => {
  await ec2.modifyInstanceAttribute({ InstanceId: instance, DisableApiTermination: { Value: true } });
  await refused("OperationNotPermitted", () => ec2.terminateInstances({ InstanceIds: [instance] }));
  await ec2.modifyInstanceAttribute({ InstanceId: instance, DisableApiTermination: { Value: false } });
  const shown = await ec2.describeInstanceAttribute({ InstanceId: instance, Attribute: "disableApiTermination" });
  equal(shown.DisableApiTermination.Value, false);
});
await step("metadata options", async () => {
  const changed = await ec2.modifyInstanceMetadataOptions({ InstanceId: instance, HttpTokens: "required" });
  equal(changed.InstanceMetadataOptions.HttpTokens, "required");
});
await step("monitoring", async () => {
  const on = await ec2.monitorInstances({ InstanceIds: [instance] });
  equal(["enabled", "pending"].includes(on.InstanceMonitorings[0].Monitoring.State), true);
  await ec2.unmonitorInstances({ InstanceIds: [instance] });
});
await step("volumes", async () => {
  const { Volumes } = await ec2.describeVolumes({ Filters: [{ Name: "attachment.instance-id", Values: [instance] }] });
  equal(Volumes[0].State, "in-use");
  const made = await ec2.createVolume({ AvailabilityZone: subnet.AvailabilityZone, Size: 8 });
  await ec2.deleteVolume({ VolumeId: made.VolumeId });
});
await step("network interfaces", async () => {
  const filter = { Name: "attachment.instance-id", Values: [instance] };
  const { NetworkInterfaces } = await ec2.describeNetworkInterfaces({ Filters: [filter] });
  equal(NetworkInterfaces[0].SubnetId, subnet.SubnetId);
});
await step("addresses", async () => {
  const { AllocationId } = await ec2.allocateAddress({ Domain: "vpc" });
  equal((await ec2.describeAddresses({ AllocationIds: [AllocationId] })).Addresses.length, 1);
  await ec2.releaseAddress({ AllocationId });
});
await step("spot instance", async () => {
  const { Instances } = await ec2.runInstances({
    MinCount: 1,
    MaxCount: 1,
    ImageId: image,
    InstanceType: "m5.large",
    InstanceMarketOptions: { MarketType: "spot" },
  });
  equal(Instances[0].InstanceLifecycle, "spot");
  const requests = await ec2.describeSpotInstanceRequests({
    SpotInstanceRequestIds: [Instances[0].SpotInstanceRequestId],
  });
  equal(requests.SpotInstanceRequests[0].InstanceId, Instances[0].InstanceId);
  await ec2.terminateInstances({ InstanceIds: [Instances[0].InstanceId] });
});
await step("stop and start", async () => {
  await ec2.stopInstances({ InstanceIds: [instance] });
  await ec2Sdk.waitUntilInstanceStopped({ client: ec2, maxWaitTime: 30, minDelay: 1, maxDelay: 1 }, { InstanceIds: [instance] });
  await ec2.startInstances({ InstanceIds: [instance] });
  await ec2.rebootInstances({ InstanceIds: [instance] });
});
await step("error codes", async () => {
  await refused("InvalidInstanceID.NotFound", () => ec2.describeInstances({ InstanceIds: ["i-0123456789abcdef0"] }));
  await refused("InvalidInstanceID.Malformed", () => ec2.describeInstances({ InstanceIds: ["banana"] }));
  await refused("InvalidParameterValue", () => ec2.describeInstances({ Filters: [{ Name: "colour", Values: ["a"] }] }));
  await refused("InvalidAMIID.NotFound", () =>
    ec2.runInstances({ MinCount: 1, MaxCount: 1, ImageId: "ami-0123456789abcdef0" }),
  );
});
const [start, end] = [new Date(Date.now() - 3600_000), new Date()];
await step("metric data", async () => {
  const datum = { MetricName: "load", Value: 4, Timestamp: new Date(Date.now() - 600_000) };
  await watch.putMetricData({ Namespace: "walk", MetricData: [datum] });
  const stat = { Metric: { Namespace: "walk", MetricName: "load" }, Period: 60, Stat: "Average" };
  const data = await watch.getMetricData({
    StartTime: start,
    EndTime: end,
    MetricDataQueries: [{ Id: "m", MetricStat: stat }, { Id: "double", Expression: "m * 2" }],
  });
  equal(data.MetricDataResults.map((result) => result.Values), [[4], [8]]);
  equal((await watch.listMetrics({ Namespace: "walk" })).Metrics.length, 1);
});
await step("metric statistics", async () => {
  const found = await watch.getMetricStatistics({
    Namespace: "walk",
    MetricName: "load",
    StartTime: start,
    EndTime: end,
    Period: 3600,
    Statistics: ["Maximum"],
  });
  equal(found.Datapoints[0].Maximum, 4);
});
await step("metric errors", async () => {
  const wrong = { Namespace: "walk", MetricName: "load", StartTime: end, EndTime: start, Period: 60 };
  await refused("InvalidParameterValueException", () => watch.getMetricStatistics({ ...wrong, Statistics: ["Sum"] }));
});
await step("terminate", async () => {
  const { TerminatingInstances } = await ec2.terminateInstances({ InstanceIds: [instance] });
  equal(TerminatingInstances[0].InstanceId, instance);
  await ec2Sdk.waitUntilInstanceTerminated({ client: ec2, maxWaitTime: 30, minDelay: 1, maxDelay: 1 }, { InstanceIds: [instance] });
});
await step("delete what is left", async () => {
  await ec2.deleteLaunchTemplate({ LaunchTemplateId: template });
  await ec2.deleteSecurityGroup({ GroupId: group });
  await ec2.deleteKeyPair({ KeyName: "walk" });
});

console.log(JSON.stringify({ passed, failed }));
