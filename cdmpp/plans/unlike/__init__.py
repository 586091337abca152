"""Jobs on unlike devices: where ranks stand, where the model is cut, how much of the batch each replica has."""
