"""The packager: from this desk's rpcsys and TVM's libraries to one archive that makes a board serve."""
