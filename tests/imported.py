"""What most commands of berg import."""

import git
import google.auth.transport.requests
import google.cloud.storage
import google.oauth2.credentials
import obstore.store

import berg.cli
import berg.end
import berg.fetch
import berg.jobs
import berg.run
from berg import features, gce

IMPORTED = git, google, obstore, berg

features.kinds()
gce.client()
