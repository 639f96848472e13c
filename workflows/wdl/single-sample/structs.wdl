version 1.0

struct Sample {
  String name
  Array[File] unmapped_bams
  File? known_sites
}

struct Reference {
  File fasta
  File fasta_index
  File dict
}
