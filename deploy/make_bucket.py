"""Make a bucket, unless it exists, in the S3 store that the AWS_* environment variables name."""

import sys

import boto3


def make_bucket(name: str) -> None:
    client = boto3.client("s3")
    try:
        client.create_bucket(Bucket=name)
    except (client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
        client.head_bucket(Bucket=name)  # raises unless we may use it


if __name__ == "__main__":
    make_bucket(*sys.argv[1:])
